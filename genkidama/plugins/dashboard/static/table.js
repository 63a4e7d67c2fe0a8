// A table that is sorted by any column, and has elements only for the rows that are seen.

import { element, mark, say } from "./dom.js";
import { compare } from "./scale.js";

const ROW = 32;
const BESIDE = 8;
const STRIDE = 4;
// While somebody scrolls, new values wait until that rests, and so long at most; milliseconds.
const REST = 120;
const LONGEST = 3000;

export class Table {
  #columns;
  #key;
  #open;
  #order;
  #sort = null;
  #rows = [];
  #sorted = [];
  #now = 0;
  #pool = [];
  #first = 0;
  #active = null;
  #frame = 0;
  #scrolled = -Infinity;
  #shown = -Infinity;
  #waiting = 0;
  #next = null;
  #above = element("tr", { class: "space", "aria-hidden": "true" }, element("td"));
  #below = element("tr", { class: "space", "aria-hidden": "true" }, element("td"));
  #body = element("tbody");
  #table = element("table", { class: "rows" });
  node;

  // A column has a `name`, which is its `label` and its `value(row, now)`'s, by which it sorts, unless
  // it has others. It may have a `hint`; `text(value, row)`, which is seen; `title(row)`; `kind(row)`,
  // a mark; and `spoken(row)`.
  // `from` is the width from which on there is room for it. The first column is the row's head,
  // and `open(row)` makes it a button. `order(a, b)` sorts while nobody has chosen a column.
  constructor({ columns, key, open = null, order, label }) {
    this.#columns = columns.map((column) => ({
      label: column.name,
      value: (row) => row[column.name],
      ...column,
    }));
    this.#key = key;
    this.#open = open;
    this.#order = order;
    this.#table.append(
      element(
        "colgroup",
        {},
        ...this.#columns.map((column) => element("col", { class: this.#look(column) })),
      ),
      element(
        "thead",
        {},
        element("tr", { "aria-rowindex": 1 }, ...this.#columns.map((column) => this.#head(column))),
      ),
      this.#body,
    );
    this.#table.setAttribute("aria-labelledby", label);
    this.node = element(
      "div",
      { class: "scroll", role: "group", tabindex: 0, "aria-labelledby": label },
      this.#table,
    );
    this.node.addEventListener("scroll", () => this.#scroll(), { passive: true });
    this.#body.addEventListener("keydown", (event) => this.#move(event));
    this.#body.addEventListener("focusin", ({ target, relatedTarget }) => {
      // From a dialog the focus returns to the element, where another row may stand by now.
      if (!relatedTarget?.closest("dialog")) this.#active = this.#key(target.closest("tr").of);
    });
    new ResizeObserver(() => this.#soon()).observe(this.node);
  }

  show(rows, now = 0) {
    this.#next = { rows, now };
    this.#take();
  }

  #take() {
    if (this.#next === null) return;
    const time = performance.now();
    if (time - this.#scrolled < REST && time - this.#shown < LONGEST) {
      clearTimeout(this.#waiting);
      this.#waiting = setTimeout(() => this.#take(), REST);
      return;
    }
    this.#shown = time;
    this.#rows = this.#next.rows;
    this.#now = this.#next.now;
    this.#next = null;
    this.#arrange();
    this.#draw();
  }

  #scroll() {
    this.#scrolled = performance.now();
    this.#soon();
  }

  #look(column) {
    return (
      [column.from ?? "", column.wide ? `wide-${column.wide}` : "", column.left ? "left" : ""]
        .join(" ")
        .trim() || null
    );
  }

  #head(column) {
    const button = element("button", {
      type: "button",
      text: column.label,
      title: column.hint ?? null,
      onclick: () => this.#choose(column),
    });
    return element(
      "th",
      { scope: "col", class: this.#look(column), "data-column": column.name },
      button,
    );
  }

  // Figures fall at first, names rise; a third click ends it.
  #choose(column) {
    const first = column.left ? 1 : -1;
    const before = this.#sort;
    if (before?.column !== column) this.#sort = { column, direction: first };
    else this.#sort = before.direction === first ? { column, direction: -first } : null;
    for (const head of this.#table.tHead.rows[0].cells) {
      const chosen = this.#sort !== null && head.dataset.column === this.#sort.column.name;
      mark(
        head,
        "aria-sort",
        chosen ? (this.#sort.direction > 0 ? "ascending" : "descending") : null,
      );
    }
    this.node.scrollTop = 0;
    this.#arrange();
    this.#draw();
  }

  #arrange() {
    // What is nearly sorted is soon sorted: comparing names is slow.
    const before = new Map(this.#sorted.map((row, index) => [this.#key(row), index]));
    const rows = this.#rows
      .map((row) => [before.get(this.#key(row)) ?? before.size, row])
      .sort((a, b) => a[0] - b[0])
      .map(([, row]) => row);
    if (this.#sort === null) {
      rows.sort(this.#order);
    } else {
      const { column, direction } = this.#sort;
      rows.sort(
        (a, b) =>
          compare(column.value(a, this.#now), column.value(b, this.#now), direction) ||
          this.#order(a, b),
      );
    }
    this.#sorted = rows;
    if (!rows.some((row) => this.#key(row) === this.#active))
      this.#active = rows.length ? this.#key(rows[0]) : null;
  }

  #soon() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  #row() {
    const cells = this.#columns.map((column, index) => {
      const look = { class: this.#look(column) };
      if (index > 0) return element("td", look);
      const inner = this.#open
        ? element("button", { type: "button", class: "open" })
        : element("span");
      return element("th", { scope: "row", ...look }, inner);
    });
    const row = element("tr", {}, ...cells);
    if (this.#open) cells[0].firstChild.addEventListener("click", () => this.#open(row.of));
    return row;
  }

  #draw() {
    const head = this.#table.tHead.offsetHeight;
    const seen = Math.ceil((this.node.clientHeight - head) / ROW) || 0;
    const top = STRIDE * Math.floor(this.node.scrollTop / ROW / STRIDE) - BESIDE;
    const first = Math.max(0, Math.min(top, this.#sorted.length - seen - 2 * BESIDE));
    const rows = this.#sorted.slice(first, first + seen + 2 * BESIDE);
    const focused = this.#body.contains(document.activeElement);
    if (this.#pool.length !== rows.length || !this.#above.isConnected) {
      while (this.#pool.length < rows.length) this.#pool.push(this.#row());
      this.#pool.length = rows.length;
      this.#body.replaceChildren(this.#above, ...this.#pool, this.#below);
    }
    this.#turn(first - this.#first);
    this.#first = first;
    mark(this.#table, "aria-rowcount", String(this.#sorted.length + 1));
    this.#stretch(this.#above, first);
    this.#stretch(this.#below, this.#sorted.length - first - rows.length);
    rows.forEach((row, index) => this.#fill(this.#pool[index], row, first + index));
    if (focused)
      this.#pool
        .find((row) => this.#key(row.of) === this.#active)
        ?.cells[0].firstChild.focus({ preventScroll: true });
  }

  // What has left on one side comes in on the other: rows that stay are not touched.
  #turn(by) {
    const pool = this.#pool;
    if (Math.abs(by) >= pool.length) return;
    for (; by > 0; by -= 1) {
      pool.push(pool.shift());
      this.#body.insertBefore(pool.at(-1), this.#below);
    }
    for (; by < 0; by += 1) {
      pool.unshift(pool.pop());
      this.#above.after(pool[0]);
    }
  }

  #stretch(space, rows) {
    space.hidden = rows <= 0;
    space.firstChild.style.height = `${Math.max(0, rows) * ROW}px`;
  }

  #fill(node, row, index) {
    if (this.#open) {
      const chosen = this.#key(row) === this.#active;
      mark(node.cells[0].firstChild, "tabindex", chosen ? "0" : "-1");
    }
    if (node.of === row && node.filled === this.#now && node.index === index) return;
    Object.assign(node, { of: row, filled: this.#now, index });
    mark(node, "aria-rowindex", String(index + 2));
    this.#columns.forEach((column, place) => {
      const cell = node.cells[place];
      const inner = place === 0 ? cell.firstChild : cell;
      const value = column.value(row, this.#now);
      say(inner, column.text ? column.text(value, row) : String(value));
      if (column.spoken) mark(inner, "aria-label", column.spoken(row));
      if (column.kind) mark(inner, "data-kind", column.kind(row));
      if (column.title) mark(cell, "title", column.title(row) || null);
    });
  }

  // One row takes part in the round of the Tab key; the arrows choose which.
  #move(event) {
    const page = Math.max(1, Math.floor(this.node.clientHeight / ROW) - 2);
    const steps = {
      ArrowDown: 1,
      ArrowUp: -1,
      PageDown: page,
      PageUp: -page,
      Home: -Infinity,
      End: Infinity,
    };
    if (!this.#open || !(event.key in steps)) return;
    event.preventDefault();
    const at = this.#sorted.findIndex((row) => this.#key(row) === this.#active);
    const to = Math.max(0, Math.min(this.#sorted.length - 1, at + steps[event.key]));
    this.#active = this.#key(this.#sorted[to]);
    const [top, room] = [to * ROW, this.node.clientHeight - this.#table.tHead.offsetHeight - ROW];
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    if (top > this.node.scrollTop + room) this.node.scrollTop = top - room;
    this.#draw();
  }
}
