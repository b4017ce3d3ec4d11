"""`Schema`: reading Spark's DDL, its aliases and nested types, and what is said of a wrong one."""

from __future__ import annotations

import re

import pytest

from transactional.errors import ConfigError
from transactional.model.schema import Field, Schema, did_you_mean, parse_type

WORDS = Schema.parse("word string, count long")


def test_fields_are_read_in_order() -> None:
    assert Schema.parse("carrier string, delay double").fields == (Field("carrier", "string"), Field("delay", "double"))
    assert WORDS.names == ("word", "count")
    assert WORDS["count"] == Field("count", "long")
    assert [field.name for field in WORDS] == ["word", "count"]
    assert len(WORDS) == 2


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_no_text_is_no_fields(text: str) -> None:
    assert Schema.parse(text) == Schema(())


@pytest.mark.parametrize(
    "text",
    [
        "word:string,count:long",
        "  word   string ,\n count\tlong ",
        "word : string, `count` bigint",
        "word STRING, count Long",
    ],
)
def test_spellings_of_the_same_schema(text: str) -> None:
    assert Schema.parse(text) == WORDS


@pytest.mark.parametrize(
    ("alias", "simple"),
    [
        ("tinyint", "byte"),
        ("smallint", "short"),
        ("integer", "int"),
        ("bigint", "long"),
        ("real", "float"),
        ("str", "string"),
        ("bool", "boolean"),
        ("bytes", "binary"),
        ("timestamp_ltz", "timestamp"),
        ("BIGINT", "long"),
    ],
)
def test_an_alias_is_read_as_its_simple_form(alias: str, simple: str) -> None:
    assert parse_type(alias) == simple


@pytest.mark.parametrize(
    ("text", "simple"),
    [
        ("array<string>", "array<string>"),
        ("array< bigint >", "array<long>"),
        ("map<string, integer>", "map<string,int>"),
        ("decimal(10, 2)", "decimal(10,2)"),
        ("struct<a:int,b:array<bigint>>", "struct<a:int,b:array<long>>"),
        ("struct<a int, b string>", "struct<a:int,b:string>"),
        ("array<struct<a:map<string,decimal(3,1)>,b:int>>", "array<struct<a:map<string,decimal(3,1)>,b:int>>"),
        ("struct<`a` int,`k8s.io/app` string>", "struct<a:int,`k8s.io/app`:string>"),
        ("map<string,struct<`a,>b`:array<struct<`c d`:int>>>>", "map<string,struct<`a,>b`:array<struct<`c d`:int>>>>"),
        ("MAP<STRING, ARRAY<INT>>", "map<string,array<int>>"),
    ],
)
def test_nested_types(text: str, simple: str) -> None:
    assert parse_type(text) == simple
    assert parse_type(simple) == simple


@pytest.mark.parametrize("text", ["struct<Word:string>", "STRUCT<Word:string>", "Array<Struct<Word:string>>"])
def test_nested_names_keep_their_case(text: str) -> None:
    """Columns are matched case-exactly, so the spelling of the keyword must not change the names inside."""
    assert "Word:string" in parse_type(text)


def test_commas_inside_of_types_do_not_end_a_field() -> None:
    schema = Schema.parse("a map<string,int>, b decimal(10,2), c struct<x:int,y:int>, d int")
    assert schema.names == ("a", "b", "c", "d")


@pytest.mark.parametrize(
    "text", ["a int, b array<struct<x:int,Y:map<string,long>>>", "`two words` int, `a``b` struct<`c``<d`:long>"]
)
def test_its_text_is_read_back_as_the_same_schema(text: str) -> None:
    schema = Schema.parse(text)
    assert Schema.parse(str(schema)) == schema


# --- what is wrong, and where -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("word", "'word' in 'word' is not of the form 'name type'"),
        ("word string,", "'' in 'word string,' is not of the form 'name type'"),
        (", word string", "'' in ', word string' is not of the form"),
        ("word-count int", "'word-count int' in 'word-count int' is not of the form"),
        ("word strnig", "unknown type 'strnig' — did you mean 'string'?; known: binary, boolean, byte"),
        ("word string not null", "unknown type 'string not null'"),
        ("a array<string", "unknown type 'array<string'"),
        ("a array<>", "unknown type ''"),
        ("a array<int,int>", "type 'array<int,int>' is not complete"),
        ("a map<string>", "type 'map<string>' is not complete"),
        ("a decimal(10)", "type 'decimal(10)' is not complete"),
        ("a decimal(x,y)", "type 'decimal(x,y)' is not complete"),
        ("a array<strnig>", "unknown type 'strnig'"),
        ("a struct<x>", "'x' in 'x' is not of the form 'name type'"),
        ("a int, b int, a long", "field a is declared more than once in 'a int, b int, a long'"),
        ("b int, b int, a int, a int", "field a, b is declared more than once"),
    ],
)
def test_a_wrong_schema_is_reported(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(says)):
        Schema.parse(text)


def test_a_field_that_is_missing_is_reported_with_both_components() -> None:
    WORDS.require(["count", "word"], of="split", used_by="total")
    with pytest.raises(ConfigError) as error:
        WORDS.require(["word", "cuont"], of="split", used_by="total")
    assert str(error.value) == (
        "total uses field 'cuont', which split does not have; its fields are: word, count — did you mean 'count'?"
    )
    with pytest.raises(ConfigError, match=r"its fields are: \(none\)$"):
        Schema(()).require(["word"], of="sink", used_by="total")


def test_selecting_gives_the_fields_in_the_order_requested() -> None:
    assert WORDS.select(["count", "word"]) == Schema.parse("count long, word string")
    assert WORDS.select([]) == Schema(())


def test_an_unknown_name_is_an_error_that_says_so() -> None:
    with pytest.raises((KeyError, ConfigError), match="cuont"):
        WORDS["cuont"]
    with pytest.raises((KeyError, ConfigError), match="cuont"):
        WORDS.select(["word", "cuont"])


def test_only_close_names_are_suggested() -> None:
    assert did_you_mean("cuont", ["word", "count"]) == " — did you mean 'count'?"
    assert did_you_mean("zebra", ["word", "count"]) == ""
