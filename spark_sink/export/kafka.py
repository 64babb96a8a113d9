"""Tables and views as topics of a Kafka cluster.

Theory of operation. Each row that is new or has changed is a message in the topic of its table,
with its stream's CID as key: so all messages of a stream are in one partition, in their order. A
change takes one transaction of Kafka's, which also writes the token up to which the table has been
followed, to a compacted topic. Whoever reads only what is committed has each change once. A second
program with the same prefix shuts out the first.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from recon_node.ipld import CID
from spark_sink.errors import SinkError
from spark_sink.export.following import Since, Taken, TargetUnreachableError
from spark_sink.query.changes import Token
from spark_sink.query.show import as_dicts, show, to_json

_POSITIONS: Final = "positions"
_BROKER_TIMEOUT: Final = 30.0
"""Seconds to wait for an answer of the cluster."""
# As long as a cluster allows by default: the first change is the whole table.
_LONGEST_TRANSACTION_MS: Final = 900_000
_READ_ONLY_COMMITTED: Final = {"isolation.level": "read_committed"}
_MESSAGE_BYTES: Final = 1_000_000
"""Bytes of a message: librdkafka's default, which clusters share."""
_ENVELOPE: Final = 2_000
"""Bytes of a message beside its value."""
_QUIET: Final = {"log_level": 0}
_FENCED: Final = (KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH)
_FOR_GOOD: Final = (
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_TRANSACTION_TIMEOUT,
    KafkaError.POLICY_VIOLATION,
    KafkaError.TOPIC_EXCEPTION,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.RECORD_LIST_TOO_LARGE,
)
"""Errors that stay until somebody changes a setting, here or in the cluster."""


class Kafka:
    """A cluster, as a target to be brought up to date."""

    def __init__(self, servers: str, prefix: str, settings: Mapping[str, str]) -> None:
        texts = {"bootstrap.servers": servers, **settings}
        try:  # librdkafka's binding would crash
            "".join([prefix, *texts, *texts.values()]).encode()
        except UnicodeEncodeError:  # it quotes passwords
            raise SinkError(
                "the address, the prefix or a setting of Kafka is not text in UTF-8"
            ) from None
        self._prefix = prefix
        self._refusal: KafkaError | None = None
        self._settings: dict[str, Any] = {**_QUIET, **texts, "error_cb": self._note}
        self._producer: Producer | None = None
        self._tokens: dict[str, Token] = {}
        self._topics: set[str] = set()

    def take(self, name: str, since: Since) -> Taken | None:
        """Send what has changed in a table, in one transaction."""
        with self._errors():
            producer = self._connected()
            token = self._tokens.get(name)
            changes = since(token)
            if changes.token == token:
                return None
            topic = self._topic(name)
            producer.begin_transaction()
            rows = 0
            for _, changed in changes.rows():
                for row in as_dicts(changed):
                    self._send(producer, topic, str(CID(row["stream_cid"])), self._text(row))
                rows += changed.num_rows
            self._send(producer, self._topic(_POSITIONS), name, str(changes.token))
            producer.commit_transaction(_BROKER_TIMEOUT)
            self._tokens[name] = changes.token
            return Taken(rows, changes.token.position)

    def close(self) -> None:
        """Leave: what has begun is undone."""
        if self._producer is not None:
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(1.0)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raise errors of the cluster as `SinkError`s; what has begun is undone."""
        try:
            yield
        except KafkaException as exception:
            # What an answer is not waited for any more may have been said aside.
            error: KafkaError = self._refusal or exception.args[0]
            self._refusal = None
            self.close()
            self._producer = None  # the next one begins by finding out what is there
            self._topics.clear()
            text = f"{error.str()}"
            if error.code() in _FENCED:
                raise SinkError(
                    f"another spark-sink export writes the topics {self._prefix}.*: end one of them"
                ) from exception
            if error.code() == KafkaError._INVALID_ARG:
                raise SinkError(f"a setting of Kafka cannot be used: {text}") from exception
            if error.code() in _FOR_GOOD or (error.fatal() and not error.retriable()):
                raise SinkError(f"Kafka refuses: {text}") from exception
            servers = self._settings["bootstrap.servers"]
            raise TargetUnreachableError(f"cannot use Kafka at {servers}: {text}") from exception

    def _note(self, error: KafkaError) -> None:
        """Note why the cluster refuses, which calls that end in time-outs do not say."""
        if error.code() in _FOR_GOOD:
            self._refusal = error

    def _connected(self) -> Producer:
        if self._producer is None:
            self._make_topic(self._name(_POSITIONS), compacted=True)
            producer = Producer(
                {
                    **self._settings,
                    "transactional.id": f"spark-sink {self._prefix}",
                    "transaction.timeout.ms": _LONGEST_TRANSACTION_MS,
                    "compression.type": "zstd",
                }
            )
            producer.init_transactions(_BROKER_TIMEOUT)  # ends those of a program before this one
            self._tokens = self._read_tokens()
            self._producer = producer
        return self._producer

    def _name(self, name: str) -> str:
        return f"{self._prefix}.{name}"

    def _topic(self, name: str) -> str:
        topic = self._name(name)
        if topic not in self._topics:
            self._make_topic(topic, compacted=False)
            self._topics.add(topic)
        return topic

    def _make_topic(self, topic: str, *, compacted: bool) -> None:
        """Create a topic with the cluster's defaults, unless it is there."""
        admin = AdminClient(self._settings)
        try:
            if topic in admin.list_topics(timeout=_BROKER_TIMEOUT).topics:
                return
        finally:
            admin.poll(0)  # calls `_note`
        # -1: as many as the cluster says. All tokens are in one partition.
        config = {"cleanup.policy": "compact"} if compacted else {}
        new = NewTopic(topic, num_partitions=1 if compacted else -1, config=config)
        try:
            admin.create_topics([new], request_timeout=_BROKER_TIMEOUT)[topic].result()
        except KafkaException as exception:
            if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def _read_tokens(self) -> dict[str, Token]:
        """Return the tokens of the last transactions that were committed."""
        tokens: dict[str, Token] = {}
        topic = self._name(_POSITIONS)
        settings = {**self._settings, **_READ_ONLY_COMMITTED, "group.id": f"{self._prefix}-nobody"}
        consumer = Consumer({**settings, "enable.auto.commit": False, "enable.partition.eof": True})
        try:
            consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            while (message := consumer.poll(_BROKER_TIMEOUT)) is not None:
                error = message.error()
                if error is None:
                    key, value = message.key(), message.value()
                    if isinstance(key, bytes) and isinstance(value, bytes):
                        tokens[key.decode()] = Token.parse(value.decode())
                elif error.code() == KafkaError._PARTITION_EOF:
                    return tokens
                else:
                    raise KafkaException(error)
            raise TargetUnreachableError("cannot use Kafka: it does not answer")
        finally:
            consumer.close()

    def _text(self, row: dict[str, Any]) -> str:
        """Return a row as JSON that the producer takes, without its largest fields if need be."""
        most = int(self._settings.get("message.max.bytes", _MESSAGE_BYTES)) - _ENVELOPE
        fields = {name: to_json(show(value)) for name, value in row.items()}
        left_out: list[str] = []
        while sum(map(_size_of, fields.items())) > most and len(left_out) < len(fields):
            largest = max(fields, key=lambda name: len(fields[name]))
            fields[largest] = "null"
            left_out.append(largest)
        if left_out:
            fields["left_out"] = to_json(left_out)
        return "{" + ", ".join(f"{json.dumps(k)}: {v}" for k, v in fields.items()) + "}"

    def _send(self, producer: Producer, topic: str, key: str, value: str) -> None:
        while True:
            try:
                producer.produce(topic, value=value.encode(), key=key.encode())
            except BufferError:  # wait until some of what was sent has arrived
                producer.poll(1.0)
                continue
            producer.poll(0)
            return


def _size_of(field: tuple[str, str]) -> int:
    """The bytes of a field in JSON, or a few more."""
    name, text = field
    return 6 * len(name) + len(text.encode()) + 6
