-- Draws steps. KEYS: rows, state, priorities. ARGV: description, how many, a random number, n, bytes
-- of an observation, bytes of a row, and a mode: "uniform", "distinct", "priority" or "stretch".
--
-- It answers with three strings. What was drawn: of each step, the observation, the numbers of it
-- and of the n − 1 rows behind, and the observation after as many of them as belong to one
-- trajectory. Or, in the mode "stretch", those rows whole and the observation behind. Then three
-- doubles of each: row, lap, priority. Then, of a stretch, a double: how many steps it has.

local s = redis.call('HMGET', KEYS[2], 'description', 'rows', 'head', 'filled', 'lap')
if s[1] ~= ARGV[1] then
  return redis.error_reply('RING ' .. (s[1] or ''))
end
local count, n, mode = tonumber(ARGV[2]), tonumber(ARGV[4]), ARGV[7]
local observation, width = tonumber(ARGV[5]), tonumber(ARGV[6])
local head, total, lap = tonumber(s[3]), tonumber(s[4]), tonumber(s[5])
local NOTHING = '\0\0\0\0'
local call, sub = redis.call, string.sub
math.randomseed(tonumber(ARGV[3]))

-- The rows from this one on, and the observation behind them. At the ring's end, where there are
-- fewer, none of the others belongs to the trajectory.
local function window(row)
  local from, size = row * width, n * width + observation
  local to = from + size - 1
  local rows = call('GETRANGE', KEYS[1], from, to)
  return #rows < size and rows .. string.rep('\0', size - #rows) or rows
end

local function is_stop(rows, number)
  return sub(rows, number * width - 3, number * width) == NOTHING
end

local function has_terminated(rows, number)
  return sub(rows, number * width - 15, number * width - 12) ~= NOTHING
end

-- Each draw is a function that gives a row and its priority, or nothing when there are no more.

local function uniform()
  return math.random(0, total - 1), 1
end

local left, moved = total, {}
local function distinct()
  if left == 0 then
    return nil
  end
  local place = math.random(0, left - 1)
  local row = moved[place] or place
  left = left - 1
  moved[place] = moved[left] or left
  return row, 1
end

local known = {}
local function by_priority(starts)
  local number, wanted = 0, nil
  for level = #starts, 1, -1 do
    local name = level .. ' ' .. number
    local values = known[name]
    if not values then
      values = node(KEYS[3], starts[level], number)
      known[name] = values
    end
    if not wanted then
      local sum = 0
      for child = 1, FAN do
        sum = sum + values[child]
      end
      wanted = math.random() * sum
    end
    local chosen = nil
    for child = 1, FAN do
      -- A rounding error must not lead into a node that is empty.
      if values[child] > 0 then
        chosen = child
        if wanted < values[child] then
          break
        end
        wanted = wanted - values[child]
      end
    end
    if not chosen then
      return nil
    end
    number = number * FAN + chosen - 1
    if level == 1 then
      return number, values[chosen]
    end
    wanted = math.min(wanted, values[chosen])
  end
end

local draw = mode == 'distinct' and distinct or uniform
if mode == 'priority' then
  local starts = levels(tonumber(s[2]))
  draw = function() return by_priority(starts) end
end

local pieces, places, lengths = {}, {}, {}
while #places < count do
  local row, priority = nil, nil
  if total > 0 then
    row, priority = draw()
  end
  if not row then
    return redis.error_reply('FEW ' .. #places)
  end
  local rows = window(row)
  if not is_stop(rows, 1) then
    places[#places + 1] = struct.pack('<ddd', row, row < head and lap or lap - 1, priority)
    local length = 1
    while length < n and not has_terminated(rows, length) and not is_stop(rows, length + 1) do
      length = length + 1
    end
    if mode == 'stretch' then
      lengths[#lengths + 1] = struct.pack('<d', length)
      pieces[#pieces + 1] = sub(rows, 1, length * width + observation)
    elseif n == 1 then
      pieces[#pieces + 1] = rows
    else
      pieces[#pieces + 1] = sub(rows, 1, width)
      for step = 2, n do
        pieces[#pieces + 1] = sub(rows, (step - 1) * width + observation + 1, step * width)
      end
      pieces[#pieces + 1] = sub(rows, length * width + 1, length * width + observation)
    end
  end
end
return { table.concat(pieces), table.concat(places), table.concat(lengths) }
