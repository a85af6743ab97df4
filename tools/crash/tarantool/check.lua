-- tarantool check.lua DIR ACKED: exit code 0 if all rows up to the last `ack N` are there, each as
-- run.lua wrote it, 2 if not; Tarantool itself ends with 1 where it refuses to open the folder.
local last = 0
for line in io.lines(arg[2]) do
    last = tonumber(line:match('%d+'))
end

local function wrong(text, code)
    print(text)
    os.exit(code or 2)
end

local is_open, reason = pcall(box.cfg, {
    work_dir = arg[1],
    wal_mode = 'none',
    log = '/dev/null',
    memtx_memory = 32 * 1024 * 1024,
})
if not is_open then
    wrong('it does not open: ' .. tostring(reason), 1)
end
local space = box.space.crashtest
local count = space and space.index[0] and space:len() or 0
if count < last then
    wrong(('row %d was acknowledged, there are %d'):format(last, count))
end
for number = 1, count do
    local row = space:get(number)
    if row == nil or #row[2] ~= 300 + number % 300 then
        wrong(('row %d is not what was written'):format(number))
    end
end
os.exit(0)
