"""What is raised instead of an exception group."""

import httpx
import pytest
import trio
from support.waiting import kept_port

from recon_node.base.connection import AsyncConnection, Connection, UnreachableError
from recon_node.base.errors import leaves, reason_of, unwrap, unwrapped, without_passwords
from recon_node.base.terminal import CommandError


def group_of(*errors: BaseException) -> BaseExceptionGroup[BaseException]:
    return BaseExceptionGroup("", errors)


def test_the_leaves_of_nested_groups():
    first, second, third = OSError(1), ValueError(2), KeyError(3)
    assert list(leaves(group_of(group_of(first, second), third))) == [first, second, third]
    assert list(leaves(first)) == [first]


def test_the_reason_of_an_error_without_words_is_its_cause() -> None:
    """As httpx, httpcore and trio raise errors of TLS."""
    broken, failed = trio.BrokenResourceError(), httpx.ConnectError("")
    assert reason_of(broken) == "BrokenResourceError"
    broken.__cause__ = OSError(1, "the certificate has expired")
    failed.__context__ = broken
    assert reason_of(failed) == "the certificate has expired"


async def test_the_reason_of_a_timeout_is_not_how_it_was_made() -> None:
    with pytest.raises(trio.TooSlowError) as caught, trio.fail_after(0):
        await trio.sleep_forever()
    assert reason_of(caught.value) == "TooSlowError"


def test_a_lone_error_stands_for_its_groups():
    lone = ValueError("lone")
    assert unwrap(group_of(group_of(lone))) is lone
    assert unwrap(lone) is lone


def test_several_errors_stay_a_group_unless_all_are_known():
    gone, away, bug = OSError("gone"), OSError("away"), ValueError("a bug")
    assert unwrap(group_of(group_of(gone), away), OSError) is gone
    unknown = group_of(gone, away)
    assert unwrap(unknown) is unknown
    mixed = group_of(gone, bug)
    assert unwrap(mixed, OSError) is mixed


def test_ctrl_c_comes_first():
    interrupt = KeyboardInterrupt()
    assert unwrap(group_of(OSError(), group_of(interrupt, ValueError()))) is interrupt


async def test_a_nursery_raises_its_lone_error_with_its_own_cause():
    cause = OSError("below")

    async def fail() -> None:
        raise ValueError("above") from cause

    async def run() -> None:
        with unwrapped():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)

    with pytest.raises(ValueError, match="above") as caught:
        await run()
    assert caught.value.__cause__ is cause
    assert caught.value.__context__ is None


async def test_a_nursery_raises_several_errors_as_a_group():
    async def fail(error: Exception) -> None:
        raise error

    async def fail_twice() -> None:
        with unwrapped(OSError):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail, OSError())
                nursery.start_soon(fail, ValueError())

    with pytest.raises(ExceptionGroup):
        await fail_twice()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(2, "No such file or directory", "/etc/x"), "No such file or directory"),
        (httpx.ConnectError("[Errno 111] Connection refused"), "Connection refused"),
        (ValueError("two\n  lines"), "two lines"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_reasons_are_words_on_one_line(error: Exception, reason: str) -> None:
    assert reason_of(error) == reason


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://user:pass@host:1/a", "https://***@host:1/a"),
        (
            "https://user:p@ss/w@host/x, postgresql://u:p/@s@h",
            "https://***@host/x, postgresql://***@h",
        ),
        (
            "at https://token@host, or HTTP://a:b@c@[::1]",
            "at https://***@host, or HTTP://***@[::1]",
        ),
        ("s3://key:secret@bucket/x", "s3://***@bucket/x"),
        ('"s3://k:s@b","x@y"', '"s3://***@b","x@y"'),
        ("s3://key:se/cr?e#t@bucket/x, s3://:/@b", "s3://***@bucket/x, s3://***@b"),
        ("http://host:5101/a@b and s3://b:1?@c", "http://host:5101/a@b and s3://b:1?@c"),
        ("http://[::1]:5101/a@b", "http://[::1]:5101/a@b"),
        ("http://a:b,s3://c:d/e@f", "http://a:b,s3://***@f"),
        ("abfss://container@account.example/x", "abfss://container@account.example/x"),
        ("https://host/user:pass@x?a://b:c", "https://host/user:pass@x?a://b:c"),
        ("nobody@host and did:key:z6Mk", "nobody@host and did:key:z6Mk"),
    ],
)
def test_passwords_in_urls_are_not_for_people(text: str, shown: str) -> None:
    assert without_passwords(text) == shown
    assert CommandError(text).format_message() == shown
    assert shown in str(UnreachableError(text, ""))


async def test_all_faces_of_a_connection_say_why_no_node_answers() -> None:
    with kept_port() as port:
        said = f"no node answers at http://127.0.0.1:{port} (Connection refused): "
        with Connection(f"127.0.0.1:{port}") as node, pytest.raises(UnreachableError) as blocking:
            node.request("GET", "/ceramic/liveness")
        async with AsyncConnection(f"127.0.0.1:{port}") as other:
            with pytest.raises(UnreachableError) as waiting:
                await other.request("GET", "/ceramic/liveness")
    assert str(blocking.value).startswith(said)
    assert str(waiting.value) == str(blocking.value)
