// What a message changes in the document that the page shows. Pure.

function grown(before, now) {
  const { replace, ...rest } = now;
  if (before && !replace && !now.rows.length) return before;
  return replace || !before ? rest : { ...rest, rows: before.rows.concat(now.rows) };
}

function children(before, changed, gone) {
  const all = new Map(before.map((child) => [child.name, child]));
  for (const name of gone) all.delete(name);
  for (const child of changed) all.set(child.name, child);
  return [...all.values()];
}

// A "status" is the whole document. A "change" has the whole of it, too, but for curves, which have
// their new rows only, and children and settings, of which it has those that changed.
export function fold(before, message) {
  if (message.type !== "change" || !before) return message;
  const { gone = [], ...now } = message;
  const [was, learning] = [before.learning, now.learning];
  const diagnostics = { ...was.diagnostics };
  for (const [name, series] of Object.entries(learning.diagnostics)) {
    diagnostics[name] = grown(was.diagnostics[name], series);
  }
  return {
    ...before,
    ...now,
    type: "status",
    learning: { ...learning, curve: grown(was.curve, learning.curve), diagnostics },
    children: children(before.children, now.children, gone),
  };
}
