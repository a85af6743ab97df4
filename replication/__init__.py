"""Replication: one folder per wire protocol, and what all protocols share.

==============  ===================================================================================
module          holds
==============  ===================================================================================
`urls`          addresses of upstreams and listeners
`session`       the contract of a protocol's state machine: bytes and clock readings in, events and
                bytes out; no socket, no clock
`packing`       numbers of a fixed width, as protocols write them
`link`          one TCP connection under one session: timers, back-pressure, closing with a reason
`listener`      accepting links on several addresses; `arrival`, `addresses`, `logins`: who comes in
`dialer`        a client that connects when it is needed, and again
`runner`        keeping one upstream followed: connect, back off, detect stalls, tell the state
`metrics`       counters and gauges, to be read by Prometheus; `metricsport` gives them over HTTP
`stream`        the log as followers see it
`service`       who may do what, and the line of changes
`bucket`        items of memcached's kind, for every protocol that has them
`topic`         messages with numbers
`protocols`     the five folders, and addresses of all of them
`server`        one server: a store, its listeners, its upstreams
==============  ===================================================================================

What a protocol's folder holds is in docs/protocols.md.
"""
