-- Makes a ring where there is none, in whole, and says what the ring is.
-- KEYS: rows, state, priorities. ARGV: description, how many rows, bytes of a row, bytes of an
-- observation, whether there are priorities.

local there = redis.call('HGET', KEYS[2], 'description')
if there and redis.call('EXISTS', KEYS[1]) == 1 then
  return there
end
local rows = tonumber(ARGV[2])
redis.call('DEL', unpack(KEYS))
-- Behind the last row there is room for an observation more: whoever reads a row reads that, too.
redis.call('SETRANGE', KEYS[1], rows * ARGV[3] + ARGV[4] - 1, '\0')
if ARGV[5] == '1' then
  local _, size = levels(rows)
  redis.call('SETRANGE', KEYS[3], size * 8 - 1, '\0')
end
redis.call('HSET', KEYS[2], 'description', ARGV[1], 'rows', ARGV[2], 'head', 0, 'filled', 0,
  'lap', 0, 'largest', 1)
return ARGV[1]
