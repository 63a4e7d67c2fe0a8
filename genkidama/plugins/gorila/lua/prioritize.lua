-- Gives steps new priorities, if they are still there.
-- KEYS: rows, state, priorities. ARGV: description, doubles of each: row, lap, priority.

local s = redis.call('HMGET', KEYS[2], 'description', 'rows', 'head', 'lap', 'largest')
if s[1] ~= ARGV[1] then
  return redis.error_reply('RING ' .. (s[1] or ''))
end
local head, lap, largest = tonumber(s[3]), tonumber(s[4]), tonumber(s[5])
local starts = levels(tonumber(s[2]))
for at = 1, #ARGV[2], 24 do
  local row, then_, priority = struct.unpack('<ddd', ARGV[2], at)
  if then_ == (row < head and lap or lap - 1) then
    redis.call('SETRANGE', KEYS[3], row * 8, struct.pack('<d', priority))
    add_up(KEYS[3], starts, row, row)
    largest = math.max(largest, priority)
  end
end
redis.call('HSET', KEYS[2], 'largest', string.format('%.17g', largest))
return 1
