"""Asking a chain: what is understood, what is refused, who is asked next, what is never told."""

import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

import httpx
import pytest
import structlog.testing
import trio
import trio.testing
from chain_server import (
    ANSWERS,
    GNOSIS,
    KEY,
    Chain,
    Fault,
    refusing,
    rpc_error,
    rpc_result,
    serving,
)

from recon_node.ceramic import TimeProof
from recon_node.ceramic.time_proof import MAX_TIME, anchor_call
from recon_node.chain import ChainError, ChainReport, ChainSettings
from recon_node.chain.rpc import RpcProvider, open_provider
from recon_node.chain.rpc_answers import read_wei
from recon_node.chain.rpc_endpoint import (
    AnswerError,
    CoolingError,
    DifferError,
    EndpointError,
    NoAnswerError,
    RpcEndpoint,
)
from recon_node.ipld import CID, DAG_CBOR

PROOF = TimeProof(
    GNOSIS,
    CID.parse("bafyreid5nnnrpykqg6qy32ms7q5nd35hmyvruwmlnwocios6srr63qcq2e"),
    CID.parse("bagjqcgzadp7fstu7fz5tfi474ugsjqx5h6yvevn54w5m4akayhegdsonwciq"),
    "f(bytes32)",
)
TX = PROOF.transaction_hash


@asynccontextmanager
async def asking(*urls: str, **settings: object) -> AsyncIterator[RpcProvider]:
    chain_settings = ChainSettings({GNOSIS: urls}, **settings)  # type: ignore[arg-type]
    async with open_provider(chain_settings, ChainReport(GNOSIS), lambda: 0.5) as provider:
        yield provider


@pytest.mark.parametrize("shape", ["gnosis", "legacy"])
async def test_a_transaction_and_its_block(clock, chain, url, shape) -> None:
    chain.mine(PROOF, 1_725_913_338, number=900, shape=shape)
    async with asking(url) as provider:
        transaction = await provider.transaction(TX)
        assert transaction.input == ANSWERS["sepolia"]["input"]
        assert transaction.block_number == "0x384"
        assert await provider.time_of(transaction) == 1_725_913_338
        assert await provider.transaction("0x" + "00" * 32) is None
        chain.transactions[TX] |= {"hash": "0x" + TX[2:].upper()}  # some write hexadecimal so
        assert await provider.time_of(await provider.transaction(TX)) == 1_725_913_338
    assert chain.asked[0] == ("eth_chainId", "")
    assert chain.count("eth_chainId") == 1


async def test_the_final_block_is_asked_for_at_most_every_ten_seconds(clock, chain, url) -> None:
    async with asking(url) as provider:
        assert [await provider.final_block() for _ in range(3)] == [1_000] * 3
        assert chain.count("eth_getBlockByNumber") == 1
        chain.finalized = 1_064
        await trio.sleep(11)
        assert await provider.final_block() == 1_064
        chain.finalized = 1_000  # or what an endpoint said once, wrongly, would count for ever
        await trio.sleep(11)
        assert await provider.final_block() == 1_000
        chain.finalized = None
        await trio.sleep(11)
        with pytest.raises(AnswerError, match="chain_confirmations"):
            await provider.final_block()


async def test_confirmations_are_counted_from_the_end_of_the_chain(clock, url) -> None:
    async with asking(url, confirmations=12) as provider:
        assert await provider.final_block() == 1_989


ENDPOINT_FAULTS = [
    Fault(500, b"oops"),
    Fault(302, b"", (("location", "http://127.0.0.1:1/"),)),
    Fault(403, b'{"jsonrpc": "2.0", "error": {"code": 1, "message": "bad key"}}'),
    rpc_error(-32005, "limit exceeded"),
    Fault(200, b'{"error": {"code": -32005, "message": null}}'),
    Fault(200, b'{"jsonrpc": "2.0", "id": 1, "error": null}'),
    Fault(200, b"<html>hello</html>"),
    Fault(200, b"\x1f\x8b\x08\x00", (("content-encoding", "gzip"),)),
    Fault(200, b"[" * 100_000),
    Fault(200, b'{"hello": 1}'),
    Fault(200, b"[]"),
    Fault(drop=True),
    Fault(hang=True),
]
MINED = ANSWERS["transactions"]["gnosis"]
ANSWER_FAULTS = [
    rpc_error(-32000, "missing trie node"),
    rpc_error(-32601, "the method does not exist"),  # not all suggest a tip
    Fault(200, b" " * 70_000),
    rpc_result(MINED),  # another transaction
    rpc_result(7),
    rpc_result({"hash": TX, "blockHash": None, "blockNumber": None}),
    rpc_result(MINED | {"hash": TX, "input": "0x123"}),
    rpc_result(MINED | {"hash": TX, "blockHash": "0x12"}),
    rpc_result(MINED | {"hash": TX, "blockNumber": "0xffffffffffffffff"}),
]


async def test_an_endpoint_that_fails_is_left_alone_and_the_next_one_answers(clock, chain, url):
    good = Chain()
    good.mine(PROOF, 7)
    chain.mine(PROOF, 7)
    async with serving(good) as other, asking(url, other) as provider:
        await provider.check()
        chain.faults.append(Fault(500))
        question = read_wei, "eth_blockNumber"
        for answers_of_good in (1, 2):  # the bad one cools down
            assert await provider.ask(*question) == 2_000
            assert good.count("eth_blockNumber") == answers_of_good
        await trio.sleep(2)
        assert await provider.ask(*question) == 2_000
        assert good.count("eth_blockNumber") == 2  # the bad one is the first choice again


async def test_answers_that_no_working_endpoint_gives(clock, chain, url) -> None:
    chain.mine(PROOF, 7)
    async with asking(url) as provider:
        await provider.check()
        for fault in ENDPOINT_FAULTS:
            chain.faults.append(fault)
            with pytest.raises(EndpointError) as error:
                await provider.transaction(TX)
            assert str(error.value).startswith(url.partition("/v3")[0] + ": "), fault
            with pytest.raises(CoolingError) as cooling:
                await provider.transaction(TX)
            await trio.sleep_until(cooling.value.until)
            assert await provider.transaction(TX) is not None


async def test_a_question_without_an_answer_does_not_cost_the_endpoint(clock, chain, url) -> None:
    chain.mine(PROOF, 7)
    async with asking(url, max_answer_bytes=65_536) as provider:
        await provider.check()
        for fault in ANSWER_FAULTS:
            chain.faults.append(fault)
            with pytest.raises(AnswerError):
                await provider.transaction(TX)
            assert await provider.transaction(TX) is not None, fault
        transaction, right = await provider.transaction(TX), chain.blocks[900]
        for wrong in ({"timestamp": None}, {"timestamp": hex(MAX_TIME + 1)}, {"number": 5}):
            chain.blocks[900] = right | wrong
            with pytest.raises(AnswerError, match="eth_getBlockByNumber"):
                await provider.time_of(transaction)


@pytest.mark.parametrize("name", ["result", "error"])
async def test_an_answer_of_other_things_is_not_made_into_objects(clock, chain, url, name) -> None:
    """A million lists held up the node for two seconds, and stayed until garbage was collected."""
    lists = b"[]," * (1 << 20)
    async with asking(url) as provider:
        await provider.check()
        chain.faults.extend([Fault(body=b'{"%s": [%s0]}' % (name.encode(), lists))] * 5)
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(5):
                with pytest.raises(AnswerError):
                    await provider.transaction(TX)
            left, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert peak < 10 * len(lists)
    assert left < 2 * len(lists)


async def test_a_proxy_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "ftp://127.0.0.1:9")
    with pytest.raises(ChainError, match="ALL_PROXY cannot be used"):
        async with asking("https://rpc.example.com"):
            pass


async def test_interim_answers_are_read_in_many_steps() -> None:
    """4,000 of them, all that was read at once, were one step of the event loop."""
    interim = b"HTTP/1.1 100 \r\n\r\n" * (1 << 13)
    result = b'{"jsonrpc": "2.0", "id": 1, "result": "0x64"}'
    turns = 0

    async def answer(stream: trio.SocketStream) -> None:
        await stream.receive_some(4096)
        head = b"HTTP/1.1 200 \r\nContent-Length: %d\r\n\r\n" % len(result)
        await stream.send_all(interim + head + result)

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, answer, 0, host="127.0.0.1"))
        port = listener.socket.getsockname()[1]
        async with asking(f"http://127.0.0.1:{port}", timeout=500) as provider:
            nursery.start_soon(take_turns)
            await provider.check()
        nursery.cancel_scope.cancel()
    assert turns > len(interim) // 8192


async def test_an_answer_in_tiny_chunks_is_read_in_many_steps() -> None:
    """10,000 chunks of one byte are here at once: they were one step of the event loop."""
    turns = 0
    seen: list[int] = []

    class TinyChunks(httpx.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            for _ in range(100_000):
                seen.append(turns)
                yield b" "

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await trio.lowlevel.checkpoint()

    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=TinyChunks()))
    async with httpx.AsyncClient(transport=transport) as client, trio.open_nursery() as nursery:
        settings = ChainSettings({GNOSIS: ("http://127.0.0.1",)}, max_answer_bytes=65_536)
        endpoint = RpcEndpoint(
            "http://127.0.0.1", client, settings, ChainReport(GNOSIS), lambda: 0.5
        )
        nursery.start_soon(take_turns)
        with pytest.raises(EndpointError, match="chunks of fewer than 64 bytes"):
            await endpoint.ask("eth_chainId")
        nursery.cancel_scope.cancel()
    assert len(seen) < 2_000
    assert len(set(seen)) > len(seen) // 3  # tasks that can go on do so in random order


async def test_who_does_not_know_a_transaction_is_not_the_last_to_be_asked(clock, url) -> None:
    archive = Chain()
    archive.mine(PROOF, 7)
    async with serving(archive) as other, asking(url, other) as provider:
        assert await provider.transaction(TX) is not None
        del archive.transactions[TX]
        assert await provider.transaction(TX) is None


@pytest.mark.parametrize("liar_is_first", [True, False])
@pytest.mark.parametrize(
    ("exists", "number", "time", "root"),
    [
        (True, 900, 7, PROOF.tx_hash),  # another input
        (True, 900, 8, PROOF.root),  # another time
        *((True, number, 7, PROOF.root) for number in (901, 1_900, 5_000)),  # another block
        *((False, number, 7, PROOF.root) for number in (900, 1_900, 5_000)),  # made up
    ],
    ids=str,
)
async def test_an_endpoint_that_lies_is_not_believed_while_another_works(
    clock, chain, url, exists, number, time, root, liar_is_first
):
    """Of its blocks, the honest one calls 900 and 901 final, and has no 5,000: it may be behind,
    but what is later than all of its blocks is not as early as 7."""
    liar = Chain()
    for block in (900, 901, 1_900):
        chain.mine(replace(PROOF, tx_hash=CID.of(DAG_CBOR, b"%d" % block)), 7, number=block)
    if exists:
        chain.mine(PROOF, 7)
    chain.head_time = 2_000
    liar.finalized = 10_000
    liar.mine(PROOF, time, number=number, data=anchor_call(root))
    async with serving(liar) as lies:
        urls = (lies, url) if liar_is_first else (url, lies)
        async with asking(*urls) as provider:
            with pytest.raises(DifferError):
                await provider.time_of(await provider.transaction(TX))


async def test_a_block_is_final_once_each_endpoint_that_has_it_says_so(clock, chain, url) -> None:
    """Until then it may be replaced, whatever one of them makes up."""
    hasty = Chain()
    for each in (chain, hasty):
        each.mine(PROOF, 7, number=1_900)
    hasty.finalized = 10_000
    async with serving(hasty) as other, asking(url, other) as provider:
        transaction = await provider.transaction(TX)
        assert await provider.time_of(transaction) is None
        chain.finalized = 1_900
        await trio.sleep(11)
        assert await provider.time_of(transaction) == 7


async def test_an_endpoint_that_lacks_something_contradicts_nobody(clock, chain, url) -> None:
    other = Chain()
    other.mine(PROOF, 7)
    chain.mine(PROOF, 7)
    del chain.transactions[TX]
    chain.fault_for = lambda _, param: rpc_error(4444, "pruned") if param == "0x384" else None
    async with serving(other) as second, asking(url, second) as provider:
        assert await provider.time_of(await provider.transaction(TX)) == 7
        chain.fault_for = lambda *_: Fault(500)
        await trio.sleep(11)
        assert await provider.time_of(await provider.transaction(TX)) == 7


async def test_a_call_is_reverted_if_no_endpoint_says_otherwise(clock, chain, url) -> None:
    """Another one would be signed, and paid."""
    other, place = Chain(), {"transactionHash": TX, "blockHash": TX, "blockNumber": "0x384"}
    chain.receipts[TX] = {**place, "status": "0x0", "gasUsed": "0x1", "effectiveGasPrice": "0x1"}
    async with serving(other) as second, asking(url, second) as provider:
        assert not (await provider.receipt(TX)).succeeded
        other.receipts[TX] = chain.receipts[TX] | {"status": "0x1"}
        with pytest.raises(DifferError):
            await provider.receipt(TX)


@pytest.mark.parametrize("name", ["gasUsed", "effectiveGasPrice"])
async def test_a_cost_that_nobody_has_paid_is_not_kept(clock, chain, url, name) -> None:
    """One of 155 digits stayed in the journal, and `anchor status` could not read it."""
    chain.receipts[TX] = {"transactionHash": TX, "blockHash": TX, "blockNumber": "0x384"}
    chain.receipts[TX] |= {"status": "0x1", "gasUsed": "0x1", "effectiveGasPrice": "0x1"}
    chain.receipts[TX][name] = "0x" + "f" * 64
    async with asking(url) as provider:
        with pytest.raises(AnswerError):
            await provider.receipt(TX)


async def test_what_is_in_no_block_has_no_receipt_yet(clock, chain, url) -> None:
    """It was shown as in block 0; another endpoint may have the block."""
    facts = {"status": "0x1", "gasUsed": "0x1", "effectiveGasPrice": "0x1"}
    chain.receipts[TX] = {"transactionHash": TX, **facts}
    other = Chain()
    async with serving(other) as second, asking(url, second) as provider:
        assert await provider.receipt(TX) is None
        other.receipts[TX] = chain.receipts[TX] | {"blockHash": TX, "blockNumber": "0x384"}
        assert (await provider.receipt(TX)).number == 900


async def test_an_endpoint_that_contradicts_itself_is_not_believed(clock, chain, url) -> None:
    """As when several machines answer for it, one of which has a block that was replaced."""
    chain.mine(PROOF, 7)
    async with asking(url) as provider:
        transaction = await provider.transaction(TX)
        chain.blocks[900]["hash"] = "0x" + "12" * 32
        with pytest.raises(DifferError):
            await provider.time_of(transaction)
        del chain.blocks[900]
        with pytest.raises(DifferError):
            await provider.time_of(transaction)


async def test_failures_are_met_with_longer_and_longer_pauses(clock, chain, url) -> None:
    async with asking(url) as provider:
        await provider.check()
        chain.fault_for = lambda method, param: Fault(500)
        before, pauses = len(chain.asked), []
        for _ in range(10):
            with pytest.raises(EndpointError, match="status 500"):
                await provider.transaction(TX)
            with pytest.raises(CoolingError) as cooling:
                await provider.transaction(TX)
            pauses.append(cooling.value.until - trio.current_time())
            await trio.sleep_until(cooling.value.until)
        assert len(chain.asked) - before == 10
        assert pauses == pytest.approx([min(2**n, 60) for n in range(10)], abs=0.1)
        chain.fault_for = lambda method, param: None
        assert await provider.transaction(TX) is None
        chain.faults.append(Fault(429, b"", (("retry-after", "100"),)))
        with pytest.raises(EndpointError, match="429"):
            await provider.transaction(TX)
        with pytest.raises(CoolingError) as cooling:
            await provider.transaction(TX)
        assert cooling.value.until - trio.current_time() == pytest.approx(100, abs=0.1)


async def test_an_endpoint_that_fails_now_and_then_does_not_fill_the_log(clock, chain, url) -> None:
    """As with a quota of requests a second."""
    with structlog.testing.capture_logs() as logs:
        async with asking(url) as provider:
            for _ in range(20):
                chain.faults.append(Fault(429))
                with pytest.raises(EndpointError):
                    await provider.transaction(TX)
                await trio.sleep(2)
                assert await provider.transaction(TX) is None
            chain.fault_for = lambda method, param: Fault(500)
            for _ in range(30):  # for good this time
                with suppress(NoAnswerError):
                    await provider.transaction(TX)
                await trio.sleep(2)
    failing, again = "An RPC endpoint is failing", "An RPC endpoint works again"
    assert [line["event"] for line in logs] == [failing, again, failing]


async def test_requests_are_bounded_in_number_and_rate(clock, chain, url) -> None:
    async with asking(url, requests_at_once=3) as provider:
        await provider.check()
        chain.hold_until(3)
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for n in range(21):
                nursery.start_soon(provider.transaction, f"0x{n:064x}")
        assert chain.most_under_way == 3
        assert trio.current_time() - started >= 2.0  # at ten a second


async def test_an_endpoint_of_another_chain_is_reported_without_its_secrets(
    clock, chain, url
) -> None:
    chain.chain_id, right = "eip155:1", Chain()
    right.mine(PROOF, 7)
    async with serving(right) as other, asking(url, other) as provider:
        with pytest.raises(ChainError) as error:
            await provider.check()
        host = url.partition("/v3")[0]
        assert str(error.value) == (
            f"the RPC endpoint {host} is set for eip155:100 but serves eip155:1: correct chain_rpc"
        )
        assert await provider.transaction(TX) is not None  # by the other one
        assert chain.asked == [("eth_chainId", "")]


async def test_no_output_holds_the_key(clock, chain, url) -> None:
    header = httpx.BasicAuth("user", "passw0rd")._auth_header
    echo = f"your key {KEY} at /v3/{KEY}?token=t0ken-too ({header}) is not known".encode()
    texts = [
        Fault(401, echo),
        Fault(200, b'{"error": {"code": -32005, "message": "' + echo + b'"}}'),
        Fault(200, b'{"error": {"code": 1, "message": "' + echo + b'"}}'),
        Fault(200, b'{"error": "' + echo + b'"}'),
        rpc_error(1, "x" * 190 + KEY),  # nor a part of it, where the text is cut
        Fault(200, echo),
        Fault(drop=True),
        Fault(hang=True),
    ]
    with structlog.testing.capture_logs() as logs, refusing() as refused_url:
        url = url.replace("http://", "http://user:passw0rd@") + "?token=t0ken-too"
        async with asking(url) as provider, asking(refused_url) as nobody:
            for fault in texts:
                chain.faults.append(fault)
                with pytest.raises((EndpointError, AnswerError)) as error:
                    await provider.transaction(TX)
                logs.append({"event": str(error.value), "log_level": "test"})
                await trio.sleep(60)
            with pytest.raises(EndpointError) as error:
                await nobody.transaction(TX)
            logs.append({"event": str(error.value), "log_level": "test"})
    assert len(logs) > len(texts) + 1
    for secret in (KEY[:8], "passw0rd", "t0ken-too", "/v3", header.split()[1]):
        assert secret not in str(logs)


async def test_an_endpoint_leaves_nothing_with_the_node(clock, chain, url) -> None:
    """Not even cookies, of which it could send new ones for ever."""
    cookies = (("set-cookie", "one=1"), ("set-cookie", "two=2; Max-Age=1000000"))
    none = Fault(body=rpc_result(None).body, headers=cookies)
    chain.fault_for = lambda method, _: none if method == "eth_getTransactionByHash" else None
    async with asking(url) as provider:
        for _ in range(3):  # the server checks that none comes back
            assert await provider.transaction(TX) is None
        assert chain.count("eth_getTransactionByHash") == 3
