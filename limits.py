"""The limits that files, peers and users meet, in one table, unit in the name.

What only makes something quick, and how long each protocol's peers may be silent, stands where it
is used. A limit is checked before memory is taken for what it limits. Those that follow Tarantool
name the source; the others were chosen so that a hostile file or peer costs bounded memory.
"""

from __future__ import annotations

from typing import Final

# --- log files ------------------------------------------------------------------------------------
META_BYTES: Final = 1024 + 834
"""Largest text header of a file (1024 bytes and the longest vclock text). Source: 2.6.0."""

BLOCK_TARGET_BYTES: Final = 128 * 1024
"""A block is written when its rows reach this after a whole transaction. Source: 2.6.0."""

BLOCK_LARGE_BYTES: Final = 512 * 1024
"""The same for a block of large tuples alone: each block costs something, whatever its size."""

BLOCK_STORED_BYTES: Final = 2**31
"""Largest length in a block header that a reader follows. Source: 2.6.0."""

BLOCK_RAW_BYTES: Final = 256 * 1024 * 1024
"""Largest block after decompression that a reader unpacks (zstd bomb)."""

COMPRESS_THRESHOLD_BYTES: Final = 2029
"""Rows of a block from this size on are zstd-compressed. Source: 2.6.0, observed."""

WAL_MAX_SIZE_BYTES: Final = 256 * 1024 * 1024
"""Default size from which a log file is closed and the next begun. Source: 2.6.0."""

WRITE_AHEAD_BYTES: Final = 1024 * 1024
"""How many zeros a log has behind its last block at most, by default."""

WRITE_AHEAD_MAX_BYTES: Final = 256 * 1024 * 1024
"""The most that can be asked for: a Tarantool that starts reads the zeros as one block."""

READ_WINDOW_BYTES: Final = 1024 * 1024
"""A reader asks the disk for this much at a time."""

VCLOCK_COMPONENTS: Final = 32
"""Replica ids are 0 … 31. Source: 2.6.0."""

DAMAGED_PLACES: Final = 1000
"""Damaged places in one file that a report names one by one; those behind are counted."""

# --- values ---------------------------------------------------------------------------------------
TUPLE_BYTES: Final = 1024 * 1024
"""Largest tuple that a store accepts (error 110). Source: 2.6.0 memtx_max_tuple_size."""

TOPIC_TUPLE_BYTES: Final = 64 * 1024 * 1024 - 32 * 1024
"""Largest tuple of a space that has the format of a topic; its row fits `IPROTO_FRAME_BYTES`."""

MSGPACK_DEPTH: Final = 512
"""Deepest nesting of MsgPack values that is decoded to objects."""

UPDATE_OPERATIONS: Final = 4000
"""Operations in one update or upsert. Source: 2.6.0."""

TRANSACTION_BYTES: Final = 128 * 1024 * 1024
"""Largest transaction, in bytes of rows (a transaction is one block)."""

DECIMAL_DIGITS: Final = 38
"""Significant digits of a decimal. Source: 2.6.0."""

SPACE_ID_MAX: Final = 2**31 - 1
"""Largest space id. Source: 2.6.0."""

INDEX_ID_MAX: Final = 128 - 1
"""Largest index id in a space. Source: 2.6.0 BOX_INDEX_MAX."""

IDENTIFIER_BYTES: Final = 65000
"""Longest name of a space, index, field or user. Source: 2.6.0 BOX_NAME_MAX."""

SQL_CHARACTERS: Final = 16 * 1024
"""Longest CHECK, and all `default`s of a space together (error 191)."""

# --- state ----------------------------------------------------------------------------------------
SYNC_ASIDE_BYTES: Final = 16 * 1024 * 1024
"""So many unsynced bytes of a log file are synced before it is closed (durability `write`)."""

LAYER_BYTES: Final = 16 * 1024 * 1024
"""When the layers over the state hold so much, the state takes them (`store.state.layers`); changes
wait where they hold twice as much."""

LAYER_SECONDS: Final = 1.0
"""Or when the oldest of them is as old as this."""

STATE_KEPT_BYTES: Final = 32 * 1024 * 1024
"""When what the state took last may have left so much freed memory behind, it is given back to the
system as soon as nothing came for `LAYER_SECONDS`."""

STATE_MAP_START_BYTES: Final = 1024 * 1024 * 1024
"""Size of the state's memory map (address space, not disk) at first; it doubles when full."""

STATE_CHECK_BYTES: Final = 512 * 1024 * 1024
"""A larger file of the state, closed in order, is read while its checksum is compared."""

STATE_KEY_BYTES: Final = 511
"""Longest key that LMDB takes."""

GROUP_BYTES: Final = 8 * 1024 * 1024
"""Largest group of requests that shares one sync; what is over goes into the next group."""

END_MARK_BYTES: Final = 4096
"""Largest `logweir.end` that is read; its longest form has about 1200 bytes."""

EXPIRY_LOOK_SECONDS: Final = 1.0
"""So often the store looks for tuples that have expired."""

EXPIRY_BATCH_TUPLES: Final = 256
"""So many of them are deleted in one transaction."""

LEASE_SECONDS: Final = 4 * 3600
"""A file that only a reader's lease keeps stays so long after the first attempt to remove it."""

LOG_FILES_OPEN: Final = 64
"""Log files that a store keeps open to read the large tuples that its state refers to."""

# --- connections ----------------------------------------------------------------------------------
MEMORY_BYTES: Final = 1024 * 1024 * 1024
"""What a server may hold for all connections together, by default; see `replication.budget`."""

MEMORY_LEAST_BYTES: Final = 128 * 1024 * 1024
"""The least that it can be told."""

MEMORY_FREE_BYTES: Final = 64 * 1024
"""So much a connection may hold however much the others do."""

MEMORY_STRANGERS_SHARE: Final = 20
"""One part in so many is for unfinished frames of all who have not said who they are."""

CONNECTIONS: Final = 4096
"""Connections that one server keeps open at a time; one more is refused."""

METRICS_CONNECTIONS: Final = 16
"""Connections that the port of metrics and health takes, however many the others have."""

LISTEN_BACKLOG: Final = 512
"""Connections that wait to be accepted."""

LOG_BURST_LINES: Final = 8
"""Log lines of one event that strangers cause, at once; then one each `LOG_LINE_SECONDS`."""

LOG_LINE_SECONDS: Final = 10.0
"""See `LOG_BURST_LINES`."""

HTTP_HEAD_BYTES: Final = 16 * 1024
"""Longest head of a request over HTTP that we answer."""
HTTP_BODY_BYTES: Final = 1024 * 1024
"""Longest body of one, which is thrown away."""
HTTP_WAITING: Final = 32
"""Requests of one connection over HTTP that are read before they are answered."""
HTTP_IDLE_SECONDS: Final = 60.0
"""A connection that asks for nothing over HTTP for so long is closed."""

WEB_SECONDS: Final = 1.0
"""Between two looks at a server for its page; more if a look takes more than a twentieth of it."""
WEB_SPACES_SECONDS: Final = 5.0
"""The same for its spaces, whose tuples are counted."""
WEB_SAMPLES: Final = 600
"""Looks whose numbers are kept for the charts of a page that is opened."""
WEB_ITEMS: Final = 100
"""Items of a list that a page is told, and numbers of one look that are kept."""
WEB_WATCHERS: Final = 64
"""Pages that are told what happens, at a time."""
WEB_OUTPUT_HIGH_BYTES: Final = 256 * 1024
"""Unsent bytes of a page from which on it is told nothing more until it has taken some."""

CALL_THREADS: Final = 8
"""Functions of CALL that wait for something at a time; of those that compute one runs."""
LOGIN_FREE: Final = 4
"""Failed logins from one address that cost it no time."""
LOGIN_DELAY_SECONDS: Final = 0.1
"""How long an address is not heard after the first failure that does; twice that after the next."""
LOGIN_DELAY_MAX_SECONDS: Final = 10.0
"""See `LOGIN_DELAY_SECONDS`."""
LOGIN_FORGET_SECONDS: Final = 30.0
"""After so long one failed login of an address is forgotten."""

LOGIN_TRIES: Final = 8
"""Failed logins on one connection, which is closed then."""

LOGIN_WAITING: Final = 16
"""Connections of one address that are not heard for failed logins; one more is closed."""

LOGIN_ADDRESSES: Final = 4096
"""Addresses whose failed logins are known."""

TLS_HANDSHAKE_SECONDS: Final = 10.0
"""A TLS handshake that takes longer is given up."""

FRAME_SECONDS: Final = 60.0
"""The rest of a message that has begun to arrive must be there after this time."""

TURN_BYTES: Final = 1024 * 1024
"""What one client has sent that is handled before the others have their turn, at most."""

TURN_ANSWER_BYTES: Final = 1024 * 1024
"""Of answers to one client before others have their turn; one more may be of any size."""

TURN_SECONDS: Final = 0.001
"""How long that should take, about: of what is expensive less is handled at a time."""

OUTPUT_HIGH_BYTES: Final = 4 * 1024 * 1024
"""Unsent bytes of one connection from which on nothing more is produced for it, nor read."""

OUTPUT_LOW_BYTES: Final = 1024 * 1024
"""Unsent bytes at which that ends."""

OUTPUT_STALL_SECONDS: Final = 60.0
"""A peer above the high mark that takes nothing for so long is disconnected as a slow reader."""

OUTPUT_MAX_BYTES: Final = 256 * 1024 * 1024
"""Unsent bytes (one huge answer) at which a connection is cut at once."""

MALLOC_KEPT_BYTES: Final = 64 * 1024 * 1024
"""Freed memory that a serving process keeps for the next blocks, per arena of the C library."""

MALLOC_ARENAS: Final = 2
"""Heaps of the C library in a serving process: what one has freed another cannot use."""

MALLOC_SHARED_BYTES: Final = 32 * 1024 * 1024
"""Larger blocks get memory of their own, which goes back at once. Source: largest glibc takes."""

CONNECT_SECONDS: Final = 30.0
"""Longest wait for a connection to an upstream. Source: 2.6.0 replication_connect_timeout."""

BACKOFF_FIRST_SECONDS: Final = 0.5
"""Wait before the second attempt to reach an upstream; it doubles each time."""

BACKOFF_MAX_SECONDS: Final = 30.0
"""Longest wait between two attempts, before jitter."""

# --- iproto ---------------------------------------------------------------------------------------
IPROTO_FRAME_BYTES: Final = 64 * 1024 * 1024
"""Largest request or replication frame that is taken. (Tarantool's own limit is 2^31.)"""

IPROTO_PIPELINE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one connection's requests that may be unanswered; then it is not read until some are."""

IPROTO_ANSWER_BYTES: Final = 128 * 1024 * 1024
"""Largest answer to one SELECT; a larger one is refused (error 2)."""

TRIAL_BYTES: Final = 16 * 1024 * 1024
"""What the statements of one open transaction of a stream take; one more is error 2."""

TRIAL_READ_BYTES: Final = 64 * 1024 * 1024
"""What the SELECTs of one may be answered in all: they run again before it is committed."""

TRIAL_SECONDS: Final = 1.0
"""An open transaction that is asked nothing for so long gives its view back."""

TRIALS: Final = 64
"""Views that open transactions have at a time; who rests longest gives one back."""

WATCHED_KEYS: Final = 1024
"""Keys that one connection may watch, and that have values which clients gave them."""

# --- followers ------------------------------------------------------------------------------------
HUB_STEP_BYTES: Final = 1024 * 1024
"""Bytes of rows that a follower is given in one step, about."""

HUB_WINDOWS_BYTES: Final = 32 * 1024 * 1024
"""Bytes of scanned rows at the end of the log that followers share."""

FOLLOWER_NAME_CHARACTERS: Final = 255
"""Longest name of a follower that `Log.retain` takes."""

RETENTION_SECONDS: Final = 1.0
"""Positions of followers become durable, and what they keep is measured, so often."""

JOIN_ROOM_BYTES: Final = 4 * 1024 * 1024 * 1024
"""While a replica is being sent a view, changes may make the state grow by this, or to its double;
then the join is broken off and the replica begins anew."""

PLACE_STEP_BYTES: Final = 1024 * 1024
"""About every so many bytes of the log a place is remembered from which followers can read."""

PLACES: Final = 4096
"""Places that are remembered."""

UPSTREAM_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Rows of one upstream that wait to be applied; then it is not read until some are."""

UPSTREAM_STEP_BYTES: Final = 1024 * 1024
"""Rows of one upstream that are applied in one commit, about."""

SYNCHRO_QUEUE_BYTES: Final = 256 * 1024 * 1024
"""Rows that wait for a master's CONFIRM or ROLLBACK; more stop the source."""

# --- Tank -----------------------------------------------------------------------------------------
TANK_FRAME_BYTES: Final = 256 * 1024 * 1024
"""Longest payload of a frame; a longer one closes the connection. Source: Tank 4.0."""

TANK_BUNDLE_RAW_BYTES: Final = 256 * 1024 * 1024
"""Largest message set after decompression."""

TANK_FETCH_BYTES: Final = 64 * 1024 * 1024
"""Fetch sizes and min bytes above this count as this. Source: Tank 4.0."""

TANK_ANSWER_BYTES: Final = 16 * 1024 * 1024
"""Chunks of one fetch answer stop here (a single larger bundle still goes out whole)."""

TANK_READ_AHEAD_BYTES: Final = 32 * 1024 * 1024
"""Bundles that were read for fetches and are kept for the next ones, of all topics together."""

TANK_WAIT_MS: Final = 3_600_000
"""Longest wait of a fetch. Source: Tank 4.0."""

TANK_WAITING_FETCHES: Final = 1024
"""Fetches that one connection may have waiting; one more is answered at once, empty."""

TANK_AWAITED_PARTITIONS: Final = 1_000_000
"""Partitions awaited by all connections together; a fetch above that is answered at once."""

TANK_UNSTORED_BYTES: Final = 16 * 1024 * 1024
"""Published bytes of one connection that are not stored yet; above, it is not read."""

TANK_UNSTORED_HERE_BYTES: Final = 1024 * 1024
"""The same with durability `write`: what came is stored, and answered, before more is read."""

TANK_PARTITIONS: Final = 65_530
"""Most partitions of a topic. Source: Tank 4.0."""
TANK_GROUP_MEMBERS: Final = 256
"""Members of a group of consumers that share the partitions of a topic."""

TANK_TOPIC_NAME_BYTES: Final = 64
"""Longest name of a topic that is created over the wire. Source: Tank 4.0."""

TANK_SILENT_SECONDS: Final = 16.0
"""A connection that has not sent a byte is closed after this. Source: Tank 4.0, observed."""

TANK_SILENT_CONNECTIONS: Final = 64
"""More connections than this that never sent a byte: the oldest is closed. Source: Tank 4.0."""

TANK_BUNDLE_BYTES: Final = TOPIC_TUPLE_BYTES - 32 * 1024
"""Largest bundle that is stored (the mirror tool of Tank makes them up to 4 MiB)."""

# --- synapse --------------------------------------------------------------------------------------
STATUS_GAPS: Final = 100
"""Noted losses that a status names."""

RECENT_ERRORS: Final = 50
"""Warnings and errors of the log that a status tells, the last ones."""
RECENT_TEXT_CHARACTERS: Final = 500
"""Of each text in one of them."""

SYNAPSE_LINE_BYTES: Final = 16384
"""Longest line without its LF, both ways. Source: Synapse 1.12.4, 1.21.2, 1.66.0, observed."""

SYNAPSE_MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Longest command in one Redis message; Synapse itself has no limit there."""

SYNAPSE_ROW_BYTES: Final = TUPLE_BYTES - 1024
"""Largest row, as MsgPack, so that its tuple fits `TUPLE_BYTES`; a larger one is a gap."""

SYNAPSE_ANEW_TOKENS: Final = 500_000
"""A stream whose tokens went back to no more than this is fetched from the beginning. Up to 1.12
servers have that limit themselves, in rows."""

SYNAPSE_PENDING_BYTES: Final = 64 * 1024 * 1024
"""Rows of one upstream that are held back: an unfinished unit, or a D1 catch-up. A catch-up that
is larger is written in pieces; a unit that is larger ends the connection."""

SYNAPSE_WAITING_BYTES: Final = 16 * 1024 * 1024
"""Rows of one upstream that wait for a fetch or the disk; then no more are read."""

SYNAPSE_HTTP_BYTES: Final = 64 * 1024 * 1024
"""Largest answer to a request for missed rows."""

SYNAPSE_JSON_BYTES: Final = 256 * 1024
"""Largest JSON of an event whose content is kept. Matrix allows 65 536 bytes."""

SYNAPSE_ACKNOWLEDGERS: Final = 64
"""Names of followers for which the log is kept; more are not remembered."""

SYNAPSE_PAGE_ROWS: Final = 1000
"""Rows in one answer to a request for missed rows, or of a state that is sent, about."""

SYNAPSE_CATCH_UP_ROWS: Final = 4096
"""Stored rows that a follower is sent in one step of its catch-up, at most."""

SYNAPSE_CATCH_UP_BYTES: Final = 256 * 1024
"""Bytes of them after which a step ends; one unit may be larger."""

SYNAPSE_SHARED_BYTES: Final = 32 * 1024 * 1024
"""Lines that are kept for other followers: of such steps, and as much of windows of the log."""

SYNAPSE_STALL_SECONDS: Final = 30.0
"""One that takes nothing of what it is sent for so long is told that it failed to keep up."""

SYNAPSE_QUEUED_COMMANDS: Final = 10_000
"""Of other followers, for one that takes nothing. Source: Synapse 1.12.4 to 1.66.0, observed."""

SYNAPSE_PARK_SECONDS: Final = 1.0
"""A follower that waits for so long until it can be sent more has no file open meanwhile."""

SYNAPSE_STEP_BYTES: Final = 64 * 1024
"""Of the log that is read at once for a follower that is behind the others."""

SYNAPSE_OUTPUT_HIGH_BYTES: Final = 512 * 1024
"""Unsent bytes of one follower from which on no more lines are made for it."""

SYNAPSE_SHARED_WINDOWS: Final = 32
"""Windows of the log whose lines are kept for all followers."""

SYNAPSE_PING_SECONDS: Final = 5.0
"""A PING goes out after so long without another command. Source: Synapse."""

SYNAPSE_TIMEOUT_SECONDS: Final = 25.0
"""A follower that has sent a PING is gone after so long without a command. Source: Synapse."""

SYNAPSE_SILENCE_SECONDS: Final = 30.0
"""An upstream that sends nothing for so long is connected to anew."""

SYNAPSE_NAME_BYTES: Final = 255
"""Longest name of a stream or instance that is stored; what has a longer one is passed over."""

SYNAPSE_STREAMS: Final = 4096
"""Streams and instances of one upstream; a flood of invented names ends the connection."""

# --- Redis ----------------------------------------------------------------------------------------
REDIS_ARGUMENTS: Final = 8192
"""Arguments of one command."""

REDIS_COMMAND_BYTES: Final = 16 * 1024 * 1024 + 64 * 1024
"""Bytes of all arguments of one command: the longest message on a homeserver's channel fits."""

REDIS_LINE_BYTES: Final = 64 * 1024
"""Longest command that is a line of words. Source: Redis."""

REDIS_CHANNELS: Final = 256
"""Channels that one connection is subscribed to."""

REDIS_NAME_BYTES: Final = 512
"""Longest name of a channel, or of a client."""

REDIS_SUBSCRIBER_BYTES: Final = 32 * 1024 * 1024
"""Messages that wait for a subscriber; with more it is cut off. Source: Redis's default."""

REDIS_CACHE_BYTES: Final = 64 * 1024 * 1024
"""Values that one listener keeps."""

REDIS_DATABASES: Final = 16
"""Numbers that SELECT takes are below. Source: Redis's default."""

# --- memcached and TAP ----------------------------------------------------------------------------
TAP_BODY_BYTES: Final = TUPLE_BYTES + 128 * 1024
"""Largest body of a packet that is kept; a larger one is passed over and refused as too large."""

TAP_BODY_MAX_BYTES: Final = 128 * 1024 * 1024
"""Largest body that is passed over; one that claims more ends the connection."""

TAP_KEY_BYTES: Final = 250
"""Longest key of an item. Source: memcached 1.6.18 and 1.8.1, observed."""

TAP_VALUE_BYTES: Final = TUPLE_BYTES - 1024
"""Largest value of an item, so that its tuple fits `TUPLE_BYTES`."""

TEXT_LINE_BYTES: Final = 2048
"""Longest beginning of a line of memcached's text without its end. Source: memcached 1.6.18."""

TEXT_KEYS_BYTES: Final = 1024 * 1024
"""The same where the line asks for items, whose keys may be many; memcached sets no bound there."""

TAP_PIPELINE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one connection's commands that may be unanswered; then it is not read until some are."""

TAP_ANSWERS_BYTES: Final = 2 * 1024 * 1024
"""Answers of one connection that the client has not taken; one more may be any size."""

TAP_OUTPUT_HIGH_BYTES: Final = 1024 * 1024
"""Unsent bytes of one TAP stream from which on nothing more is produced for it; about as much as is
produced in one step comes on top."""

TAP_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""Bytes of a stream that may be without acknowledgement, where its consumer gives them."""

TAP_WINDOW_PACKETS: Final = 10_000
"""Packets of a stream that may be without acknowledgement. Source: ep-engine 1.8.1."""

TAP_ACK_INTERVAL_PACKETS: Final = 1000
"""Every so many packets an acknowledgement is asked for. Source: ep-engine 1.8.1."""

TAP_GRACE_SECONDS: Final = 300.0
"""A consumer whose window is full and that acknowledges nothing for so long is disconnected.
Source: ep-engine 1.8.1."""

TAP_BACKOFF_SECONDS: Final = 5.0
"""Pause of a stream whose consumer was busy. Source: ep-engine 1.8.1."""

TAP_NOOP_SECONDS: Final = 20.0
"""An idle stream sends a sign of life so often. (ep-engine 1.8.1: 200.)"""

SCRAM_ITERATIONS_MAX: Final = 1_000_000
"""Iterations of SCRAM that a server may ask a client of ours for."""

TAP_NOOPS_UNANSWERED: Final = 2
"""Signs of life that a consumer which has answered one before may leave unanswered in a row."""

TAP_SWEEP_SECONDS: Final = 60.0
"""Longest pause between two walks over a bucket that remove what has expired."""

TAP_SWEEP_ITEMS: Final = 500
"""Items of a bucket that such a walk looks at in one go."""

TAP_KEEPALIVE_SECONDS: Final = 3600.0
"""How long the position of a named stream is kept for a consumer that is away; that of a
registered one is kept until it is deregistered. Source: largest that ep-engine takes."""

TAP_STREAMS: Final = 1000
"""Named streams whose positions are kept at a time."""

BACKFILL_CHUNK_ITEMS: Final = 4096
"""Items of a bucket that a follower is given from one read view."""

BACKFILL_CHUNK_BYTES: Final = 1024 * 1024
"""Bytes of tuples that are read for a follower from one read view, about."""

# --- Greenstack -----------------------------------------------------------------------------------
GREENSTACK_FRAME_BYTES: Final = 32 * 1024 * 1024
"""Longest frame, its length field left out; one that claims more ends the connection."""

GREENSTACK_BUCKETS: Final = 10_000
"""Buckets that are listed, or that a stream can name."""

GREENSTACK_ID_BYTES: Final = 250
"""Longest id of a document. Source: memcached's limit."""

GREENSTACK_GETS: Final = 1000
"""Ids of one GET_MANY."""

GREENSTACK_LANE_BYTES: Final = 255
"""Longest id of a lane."""

GREENSTACK_LANES: Final = 64
"""Lanes of one connection, the root lane left out; a request in one more gets TooBusy."""

GREENSTACK_TRANSACTION_FRAMES: Final = 1000
"""Frames that `more` may bind together."""

GREENSTACK_TRANSACTION_BYTES: Final = 16 * 1024 * 1024
"""Bytes of such frames, of all that are bound together on a connection and not complete yet."""

GREENSTACK_PIPELINE_BYTES: Final = 16 * 1024 * 1024
"""Bytes of one connection's requests that may be unanswered; then it is not read until some are."""

GREENSTACK_BATCH_BYTES: Final = 256 * 1024
"""Bytes of one lane's requests that go into the commit queue together, about."""

GREENSTACK_STREAMS: Final = 16
"""Streams of one connection."""

GREENSTACK_STREAM_NAME_BYTES: Final = 64
"""Longest name of a stream."""

GREENSTACK_WINDOW_MIN_BYTES: Final = 4096
"""Smallest window of a stream; what asks for less gets this."""

GREENSTACK_WINDOW_MAX_BYTES: Final = 16 * 1024 * 1024
"""Largest window of a stream; what asks for more gets this."""

GREENSTACK_CREDIT_SECONDS: Final = 300.0
"""A stream whose client holds back credit for so long is ended as TooBusy."""

GREENSTACK_PATCH_STEPS: Final = 1000
"""Operations of one JSON Patch."""

# --- Spark ----------------------------------------------------------------------------------------
PIPELINE_SPLIT_BYTES: Final = 32 * 1024 * 1024
"""Bytes of files that one task reads, about. A task costs tens of milliseconds by itself."""

PIPELINE_OPENING_BYTES: Final = 64 * 1024
"""What opening a file counts for where files share a task; reading so much takes as long."""

PIPELINE_BATCH_BYTES: Final = 1024 * 1024
"""Bytes of rows that are handed to Spark at a time, about (one larger block goes whole)."""

PIPELINE_BATCH_ROWS: Final = 16_384
"""Most rows of one batch."""

PIPELINE_NARROW_BYTES: Final = 16 * 1024 * 1024
"""Bytes of rows that a task of a state or compaction puts in order, and thins out, at a time."""

PIPELINE_WINDOW_BYTES: Final = 4 * 1024 * 1024
"""A task asks the disk for this much at a time."""

PIPELINE_DEFINITION_BYTES: Final = 256 * 1024 * 1024
"""Rows of system spaces that a job gathers in the driver."""

PIPELINE_PART_BYTES: Final = 64 * 1024 * 1024
"""Bytes of rows of logs and snapshots, unpacked, per part of a job's output, about."""

ARCHIVE_TAIL_BYTES: Final = 8 * 1024 * 1024
"""What one object of an open log's tail holds, unless one block is larger."""
ARCHIVE_WAIT_SECONDS: Final = 60.0
"""The longest that an archiver waits before it tries a place again that has failed."""
