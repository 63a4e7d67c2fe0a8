-- Priorities of all rows, and their sums: a tree in one string, 64 numbers (doubles) a node. Level 1
-- are the rows' own; each number of a level is the sum of a node of the level below.

local FAN = 64
local UNPACK = '<' .. string.rep('d', FAN)

-- Where each level begins, in numbers, and how many there are in all.
local function levels(rows)
  local starts, start, size = {}, 0, rows
  repeat
    size = math.ceil(size / FAN)
    starts[#starts + 1] = start
    start = start + size * FAN
  until size == 1
  return starts, start
end

local function node(key, start, number)
  local from = (start + number * FAN) * 8
  return { struct.unpack(UNPACK, redis.call('GETRANGE', key, from, from + FAN * 8 - 1)) }
end

-- The rows first … last have other priorities: their sums follow.
local function add_up(key, starts, first, last)
  for level = 1, #starts - 1 do
    first, last = math.floor(first / FAN), math.floor(last / FAN)
    for number = first, last do
      local sum, values = 0, node(key, starts[level], number)
      for child = 1, FAN do
        sum = sum + values[child]
      end
      redis.call('SETRANGE', key, (starts[level + 1] + number) * 8, struct.pack('<d', sum))
    end
  end
end
