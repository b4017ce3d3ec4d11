"""The scripts that run in the server: the trial of a user's commands, and the write of a transaction.

Redis rolls nothing back: what a script has done before a command of it fails stays. So a write is ordered. First the
keys that it is about to change are added to those that the next attempt puts right, then come rows, then times, and
last, in one command, the version. Whatever has been reached, the next write over the same version ends right.
"""

from __future__ import annotations

from typing import Final

TRY: Final = """
local meta, rows, changed, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local function refused(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then return {select(1, ...), reply.err} end
end
return refused('EXISTS', meta)
  or refused('HGET', meta, '') or refused('HMGET', meta, '') or refused('HGETALL', meta)
  or refused('HLEN', rows) or refused('SMEMBERS', changed) or refused('ZRANGEBYSCORE', expiry, '(0', '(0')
  or refused('HDEL', meta, '') or refused('HSET', meta, '', '') or refused('HDEL', meta, '')
  or refused('HDEL', rows, '') or refused('HSET', rows, '', '') or refused('HDEL', rows, '')
  or refused('SREM', changed, '') or refused('SADD', changed, '') or refused('SREM', changed, '')
  or refused('ZREM', expiry, '') or refused('ZADD', expiry, 0, '') or refused('ZREM', expiry, '')
  or {}
"""
"""Tries each command on the state's own keys, and changes nothing: what is added can be removed, as was tried before.
Returns the first command that is refused, and the error; nothing, if none is."""

WRITE: Final = """
local meta, rows, changed, expiry = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local found = redis.call('HMGET', meta, 'owner', 'attempt', 'length')
local owner, version, length = found[1] or '', found[2] or '', found[3] or ''
local function count() return tostring(redis.call('HLEN', rows)) end
if owner ~= ARGV[1] or version ~= ARGV[2] or (length ~= '' and length ~= count()) then
  return {0, owner, version}
end
local at = 10
local function each(count, width, call)
  local last = at + count * width - 1
  while at <= last do
    local stop = math.min(at + 3999, last)
    call(at, stop)
    at = stop + 1
  end
end
local function change(...)
  redis.call(...)
  redis.call('HSET', meta, 'length', count())
end
redis.call('HSET', meta, 'length', count())
local left = {}
if ARGV[4] == 'rows' then
  for _, key in ipairs(redis.call('SMEMBERS', changed)) do left[key] = true end
end
each(ARGV[5], 1, function(first, last)
  redis.call('SADD', changed, unpack(ARGV, first, last))
  for place = first, last do left[ARGV[place]] = nil end
end)
each(ARGV[6], 2, function(first, last) change('HSET', rows, unpack(ARGV, first, last)) end)
each(ARGV[7], 1, function(first, last) change('HDEL', rows, unpack(ARGV, first, last)) end)
each(ARGV[8], 2, function(first, last) redis.call('ZADD', expiry, unpack(ARGV, first, last)) end)
each(ARGV[9], 1, function(first, last) redis.call('ZREM', expiry, unpack(ARGV, first, last)) end)
local keys = {}
for key in pairs(left) do keys[#keys + 1] = key end
for first = 1, #keys, 4000 do
  redis.call('SREM', changed, unpack(keys, first, math.min(first + 3999, #keys)))
end
redis.call('HSET', meta, 'length', count(), unpack(ARGV, at, #ARGV))
return {1}
"""
"""Writes a transaction over the version that was read, of whose rows none is gone; or returns who has come between.

`length` says how many rows there are: it is true after each command."""
