"""Replication: one folder per protocol, and what all protocols share.

==============  ===================================================================================
module          holds
==============  ===================================================================================
`urls`          the addresses of upstreams and listeners
`session`       the contract of a protocol's state machine: bytes and clock readings in, events and
                bytes out; no socket, no clock
`link`          one TCP connection under one session: timers, back-pressure, closing with a reason
`listener`      accepting links on several addresses, with limits and TLS
`runner`        keeping one upstream followed: connect, back off, detect stalls, tell the state
`hub`           waking followers at a commit; windows of the log that they share
`metrics`       counters and gauges, to be read by Prometheus
==============  ===================================================================================

A protocol's folder holds `codec` (bytes ↔ messages), `session` (state machine), `endpoint` (serve)
and `source` (follow).
"""
