-- Writes a block behind the newest one, or at the ring's beginning where it does not fit there.
-- KEYS: rows, state, priorities. ARGV: description, block, its rows, bytes of a row, the writer's
-- name, the writer's word, the block's number, whether there are priorities.

local s = redis.call('HMGET', KEYS[2], 'description', 'rows', 'head', 'filled', 'lap', 'largest',
  'writer ' .. ARGV[5])
if s[1] ~= ARGV[1] then
  return redis.error_reply('RING ' .. (s[1] or ''))
end
-- A block whose answer got lost comes again. It counts once.
local word, number = string.match(s[7] or '', '^(%S+) (%d+)$')
if word == ARGV[6] and tonumber(number) >= tonumber(ARGV[7]) then
  return 0
end
local block, size, width = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local head, lap = tonumber(s[3]), tonumber(s[5])
if head + size > tonumber(s[2]) then
  head, lap = 0, lap + 1
end
redis.call('SETRANGE', KEYS[1], head * width, block)
if ARGV[8] == '1' then
  local largest, nothing, new = struct.pack('<d', s[6]), struct.pack('<d', 0), {}
  for row = 1, size do
    -- The last number of a row says whether it is a step.
    new[row] = string.sub(block, row * width - 3, row * width) == '\0\0\0\0' and nothing or largest
  end
  redis.call('SETRANGE', KEYS[3], head * 8, table.concat(new))
  add_up(KEYS[3], levels(tonumber(s[2])), head, head + size - 1)
end
head = head + size
redis.call('HSET', KEYS[2], 'head', head, 'filled', math.max(head, tonumber(s[4])), 'lap', lap,
  'writer ' .. ARGV[5], ARGV[6] .. ' ' .. ARGV[7])
return size
