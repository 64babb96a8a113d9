"""Names that `vulture` would call unused, each with who uses it. Read by vulture, never run.

Names that a framework gives to what it calls are in pyproject.toml ([tool.vulture]).
"""
# ruff: noqa

# Enum members and fields that complete a table of a specification.
_.METADATA  # UnixFS, DataType
_.nnc  # UCAN, the payload

# Protocols: mypy asks for the member, users have it anyway.
_.__lt__  # the order of event ids
_.__call__  # the function that answers a request

# Read by the library whose attribute or field it is.
_.redirect_slashes  # starlette's Router
_.__signature__  # inspect
_.__pydantic_config__  # pydantic, of a TypedDict
_.__getattr__  # Python, of a module (PEP 562)
_.text_factory  # sqlite3.Connection
_.READ_NUM_BYTES  # httpcore.AsyncHTTP11Connection
_.handle_starttag  # html.parser.HTMLParser
_.before_task_step  # trio.abc.Instrument
_.input, _.blockHash, _.blockNumber  # pydantic's TypeAdapter: fields of an Ethereum transaction

_.sepValue, _.streamId, _.deliveredAt, _.resumeToken  # msgspec: fields of a node's answers
_.command_class, _.short_help  # click.Group, click.Command
(
    _.not_fetched,
    _.removed_peers,
    _.peer_memory,
    _.write_policy,
    _.model_name,
    _.score,
    _.resume_offset,
    _.resume_token,
    _.addr,
    _.pins,
    _.rem_path,
    _.updated_at,
    _.anchor_commit,
    _.witness_car,
    _.supported_chains,
    _.cost_wei,
    _.balance_wei,
    _.spent_wei,
    _.waits_for,
    _.anchored_event,
    _.anchoring_alarm,
    _.truncated,
)  # msgspec: fields of an answer

_.block_times, _.chain_ids  # read by their names: what a column of the feed is made of
_.shared_blocks  # read by its name: a line of `store info`

_.type_name  # protobuf's FieldDescriptorProto

_.get_version, _.post_version  # endpoints, which are found in their module

# Methods that a library calls on our subclass.
_.format_commands  # click.Group
_.nullable_schema  # pydantic's GenerateJsonSchema
_.readinto  # io.RawIOBase
_.do_POST  # http.server's BaseHTTPRequestHandler
_.handle_error, client_address  # socketserver.TCPServer
_.handleInputRows, timerValues  # pyspark's StatefulProcessor
_.discard_run, _.start_walk, _.teardown  # hypothesis' RuleBasedStateMachine
_.do_GET, _.log_message  # http.server.BaseHTTPRequestHandler
_.RequestHandlerClass  # socketserver.BaseServer
_._execute_child, _._child_created  # subprocess.Popen

# The remedies for py-libp2p replace these methods and attributes of it (docs/decisions).
_._provider_rate_max, _.handle_stream, _.MAX_DHT_MESSAGE_SIZE
_.AGENT_VERSION, _.muxer_multistream, _.read_length_prefixed_protobuf, use_varint_format
_.update_peerstore_from_identify, _.peer_record_map
_.__class__, _._measure_rtt_loop, _._ping_sent_time, _.new_conn
_._auto_tune_and_send_window_update, bytes_read
_._handle_inbound_connection, _._select_connection, _.read_delim, _._manager
_._ping_peer, _.record_disconnect, _.is_allowed

# Hooks that mkdocs calls.
on_files, on_page_markdown
