-- tarantool run.lua DIR: inserts rows one by one until it is killed, and prints `ack N` for each.
-- Small logs, and now and then a snapshot, so that files change often.
local ffi = require('ffi')
ffi.cdef('ssize_t write(int fd, const void *data, size_t size);')
box.cfg{
    work_dir = arg[1],
    wal_mode = 'fsync',
    log = '/dev/null',
    checkpoint_interval = 0,
    wal_max_size = 16384,
    memtx_memory = 32 * 1024 * 1024,
}
box.once('crashtest', function()
    box.schema.space.create('crashtest')
    box.space.crashtest:create_index('primary')
end)
local space = box.space.crashtest
local number = space:len()
while true do
    number = number + 1
    space:insert{number, string.rep('x', 300 + number % 300)}
    local line = string.format('ack %d\n', number)
    ffi.C.write(1, line, #line)
    if number % 100 == 0 then
        box.snapshot()
    end
end
