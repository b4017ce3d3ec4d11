#!/bin/sh
# Ends with one clear sentence unless the Java that Spark will start (JAVA_HOME's, else PATH's) is new enough.
set -eu

oldest=17
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
how="install a JDK of version $oldest or newer (Debian, Ubuntu: apt-get install openjdk-$oldest-jre-headless; macOS: \
brew install openjdk@$oldest), or point JAVA_HOME at one."

# 17 of `version "17.0.15"`, 8 of `version "1.8.0_292"`.
version=$("$java" -version 2>&1 | sed -n -e 's/^.*version "1\.\([0-9][0-9]*\).*$/\1/p' -e 's/^.*version "\([0-9][0-9]*\).*$/\1/p' | head -n 1)

if [ -z "$version" ]; then
    echo "transactional: Spark needs Java, but '$java -version' did not answer with a version: $how" >&2
    exit 1
fi
if [ "$version" -lt "$oldest" ]; then
    echo "transactional: Spark needs Java $oldest or newer, but '$java' is Java $version: $how" >&2
    exit 1
fi
