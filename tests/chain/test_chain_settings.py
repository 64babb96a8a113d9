"""Chains and their URLs, however they are given, and the bound on what is believed of a block."""

import pytest
from support.settings import load_settings

from recon_node.chain.settings import ChainSettings, parse_confirmations, parse_providers

ONE, TWO, GNOSIS = "https://one.example/key", "https://two.example", "http://127.0.0.1:8545/"
BOTH = {"eip155:1": (ONE, TWO), "eip155:100": (GNOSIS,)}


@pytest.mark.parametrize(
    "value",
    [
        {"eip155:1": [ONE, TWO], "eip155:100": GNOSIS},
        {"eip155:1": [ONE, TWO, ONE], "eip155:100": [GNOSIS]},
        f"eip155:1={ONE},eip155:1={TWO},eip155:100={GNOSIS}",
        f" eip155:1={ONE} , eip155:100={GNOSIS},eip155:1={TWO},",
        [f"eip155:1={ONE}", f"eip155:1={TWO}", f"eip155:100={GNOSIS}"],
    ],
)
def test_a_table_lines_and_text_say_the_same(value: object) -> None:
    assert parse_providers(value) == BOTH


def test_a_query_keeps_its_equals_signs() -> None:
    query = "https://x.org/?key=1"
    assert parse_providers([f"eip155:1={query}"]) == {"eip155:1": (query,)}


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *(({chain: ONE}, "is not a supported chain") for chain in ("eip155:0", "eip155:01", "")),
        (f"solana:1={ONE}", "'solana:1' is not a supported chain"),
        *(
            ({"eip155:1": urls}, "eip155:1 should have a URL, or an array")
            for urls in (5, {"a": ONE})
        ),
        (5, "should be a table of chains"),
        ([ONE], "an entry should be CHAIN=URL"),
        (["eip155:1=ftp://one.example/key"], r"eip155:1 \(ftp://one\.example\) should start"),
        (["eip155:1=http://[key"], "the URL for eip155:1 is not valid"),
        (["eip155:1=http://x:port/key"], "the URL for eip155:1 is not valid"),
        (["eip155:1=http://one..example/key"], "the URL for eip155:1 is not valid"),
        ([f"eip155:1=http://{'a' * 64}.example/key"], "the URL for eip155:1 is not valid"),
    ],
)
def test_providers_that_cannot_be_used(value: object, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        parse_providers(value)
    assert "/key" not in str(error.value)
    assert "[key" not in str(error.value)


def test_confirmations() -> None:
    assert [parse_confirmations(value) for value in ("finalized", 1, "12")] == ["finalized", 1, 12]
    for bad in (0, -1, True, "latest", "1.5", ""):
        with pytest.raises(ValueError, match="should be 'finalized' or a number"):
            parse_confirmations(bad)


def test_the_file_the_environment_and_what_beats_what(tmp_path, monkeypatch):
    file = tmp_path / "node.toml"
    file.write_text(
        f'chain_confirmations = 12\n[chain_rpc]\n"eip155:1" = ["{ONE}", "{TWO}"]\n'
        f'"eip155:100" = "{GNOSIS}"\n'
    )
    settings = load_settings(file)
    assert settings.chain == ChainSettings(BOTH, confirmations=12)
    assert "one.example" not in repr(settings)
    assert "one.example" not in repr(settings.chain)
    monkeypatch.setenv("RECON_NODE_CHAIN_RPC", f"eip155:100={TWO}")
    assert load_settings(file).chain.providers == {"eip155:100": (TWO,)}
    flags = {"chain_rpc": (f"eip155:5={ONE}",), "chain_confirmations": "3"}
    loaded = load_settings(file, flags)
    assert (loaded.chain.providers, loaded.chain.confirmations) == ({"eip155:5": (ONE,)}, 3)
