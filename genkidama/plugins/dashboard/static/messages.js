// Messages of docs/reference/protocol.md: a length, a MessagePack map, and a vector of float32.

const utf8 = new TextEncoder();
const text = new TextDecoder();

function pack(value, out) {
  const head = (code, size, bytes) => {
    out.push(code);
    for (let i = bytes - 1; i >= 0; i--) out.push(Math.floor(size / 2 ** (8 * i)) % 256);
  };
  if (value === null || value === undefined) out.push(0xc0);
  else if (typeof value === "boolean") out.push(value ? 0xc3 : 0xc2);
  else if (typeof value === "string") {
    const bytes = utf8.encode(value);
    if (bytes.length < 32) out.push(0xa0 | bytes.length);
    else if (bytes.length < 256) head(0xd9, bytes.length, 1);
    else head(0xda, bytes.length, 2);
    out.push(...bytes);
  } else if (Number.isSafeInteger(value) && value >= 0) {
    if (value < 128) out.push(value);
    else if (value < 2 ** 32) head(0xce, value, 4);
    else head(0xcf, value, 8);
  } else if (typeof value === "number") {
    const bytes = new DataView(new ArrayBuffer(8));
    bytes.setFloat64(0, value);
    out.push(0xcb, ...new Uint8Array(bytes.buffer));
  } else if (Array.isArray(value)) {
    if (value.length < 16) out.push(0x90 | value.length);
    else if (value.length < 65536) head(0xdc, value.length, 2);
    else head(0xdd, value.length, 4);
    for (const each of value) pack(each, out);
  } else {
    const pairs = Object.entries(value);
    if (pairs.length < 16) out.push(0x80 | pairs.length);
    else head(0xde, pairs.length, 2);
    for (const [key, each] of pairs) {
      pack(key, out);
      pack(each, out);
    }
  }
}

// One value from `view` on; `at` is a counter that goes on.
function unpack(view, at) {
  const code = view.getUint8(at.byte++);
  const number = (name, size) => {
    const value = view[name](at.byte);
    at.byte += size;
    return Number(value);
  };
  const size = (bytes) => number(`getUint${8 * bytes}`, bytes);
  const string = (length) => {
    const bytes = new Uint8Array(view.buffer, view.byteOffset + at.byte, length);
    at.byte += length;
    return text.decode(bytes);
  };
  const array = (length) => Array.from({ length }, () => unpack(view, at));
  const map = (length) =>
    Object.fromEntries(Array.from({ length }, () => [unpack(view, at), unpack(view, at)]));
  if (code < 0x80) return code;
  if (code < 0x90) return map(code & 15);
  if (code < 0xa0) return array(code & 15);
  if (code < 0xc0) return string(code & 31);
  if (code >= 0xe0) return code - 256;
  switch (code) {
    case 0xc0: return null;
    case 0xc2: return false;
    case 0xc3: return true;
    case 0xca: return number("getFloat32", 4);
    case 0xcb: return number("getFloat64", 8);
    case 0xcc: return size(1);
    case 0xcd: return size(2);
    case 0xce: return size(4);
    case 0xcf: return number("getBigUint64", 8);
    case 0xd0: return number("getInt8", 1);
    case 0xd1: return number("getInt16", 2);
    case 0xd2: return number("getInt32", 4);
    case 0xd3: return number("getBigInt64", 8);
    case 0xd9: return string(size(1));
    case 0xda: return string(size(2));
    case 0xdb: return string(size(4));
    case 0xdc: return array(size(2));
    case 0xdd: return array(size(4));
    case 0xde: return map(size(2));
    case 0xdf: return map(size(4));
    default: throw new RangeError(`MessagePack of the kind ${code}`);
  }
}

const aligned = (length) => (length + 7) & ~7;

// The bytes of a message, whose map is `message`; `vector` is a Float32Array or null.
export function encode(message, vector = null) {
  const map = [];
  pack(message, map);
  const start = vector === null ? 4 + map.length : aligned(4 + map.length);
  const bytes = new Uint8Array(start + (vector === null ? 0 : vector.byteLength));
  new DataView(bytes.buffer).setUint32(0, map.length, true);
  bytes.set(map, 4);
  if (vector !== null) {
    bytes.set(new Uint8Array(vector.buffer, vector.byteOffset, vector.byteLength), start);
  }
  return bytes;
}

// The map of a message, and its vector or null.
export function decode(buffer) {
  const view = new DataView(buffer);
  const end = 4 + view.getUint32(0, true);
  const message = unpack(view, { byte: 4 });
  const vector = end === buffer.byteLength ? null : new Float32Array(buffer.slice(aligned(end)));
  return [message, vector];
}
