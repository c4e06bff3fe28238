// Tables that sort by any column, and change only what is different.

import { el, isInUse, setClass, setText } from './dom.js';

// A column is { title, cell(row) or draw(td, row), value(row), kind, about }: `cell` gives text, `draw` changes the cell
// by itself, `value` is what the column sorts by.
export class Table {
  constructor(place, { columns, key, empty, sort, label }) {
    Object.assign(this, { place, columns, key, empty, rows: [], known: new Map(), matches: null, order: [] });
    this.sorted = columns.find(column => column.title === sort) || null;
    this.down = Boolean(this.sorted) && isNumber(this.sorted);
    this.heads = columns.map(column => this.head(column));
    this.body = el('tbody', { role: 'rowgroup' });
    this.table = el('table', { role: 'table' },
      el('thead', { role: 'rowgroup' }, el('tr', { role: 'row' }, ...this.heads)), this.body);
    this.table.setAttribute('aria-label', label);
    this.nothing = el('p', { className: 'empty' });
    this.shown = null;
    this.markSorted();
  }

  head(column) {
    const cell = el('th', { scope: 'col', className: column.kind || 'text', role: 'columnheader' });
    if (column.value) {
      const act = () => this.sortBy(column);
      const sorter = el('button', { type: 'button', className: 'sort', title: column.about || '', onclick: act }, column.title);
      cell.append(sorter);
    } else cell.append(column.title || el('span', { className: 'unseen' }, column.name || 'actions'));
    return cell;
  }

  rename(column, title) {
    if (column.title === title) return;
    column.title = title;
    const at = this.columns.indexOf(column);
    setText(this.heads[at].firstChild, title);
    for (const line of this.known.values()) line.cells[at].dataset.title = title;
  }

  sortBy(column) {
    this.down = this.sorted === column ? !this.down : isNumber(column);
    this.sorted = column;
    this.markSorted();
    this.show(this.rows, true);
  }

  markSorted() {
    this.columns.forEach((column, index) => {
      if (!column.value) return;
      const way = this.sorted !== column ? 'none' : this.down ? 'descending' : 'ascending';
      this.heads[index].setAttribute('aria-sort', way);
    });
  }

  // Hides the rows that do not match.
  filter(matches) {
    this.matches = matches;
    if (this.shown) this.show(this.rows, true);
  }

  show(rows, forced) {
    this.rows = rows;
    const seen = new Set();
    for (const row of rows) {
      const key = this.key(row);
      seen.add(key);
      const line = this.known.get(key) || this.add(key);
      line.row = row;
      this.update(line, row);
    }
    for (const [key, line] of this.known) {
      // Whoever works in a row by keyboard keeps it.
      if (seen.has(key) || line.node.contains(document.activeElement)) continue;
      line.node.remove();
      this.known.delete(key);
    }
    this.placeRows(rows, forced);
    const visible = rows.some(row => !this.known.get(this.key(row)).node.hidden);
    if (!visible) setText(this.nothing, rows.length ? 'Nothing here matches the search.' : this.empty);
    this.put(rows.length ? visible ? [this.table] : [this.table, this.nothing] : [this.nothing]);
  }

  // A sentence in place of the table.
  fail(text) {
    if (this.shown && this.rows.length) return;
    this.put([el('p', { className: 'bad' }, text)]);
  }

  put(nodes) {
    const now = nodes.map(node => node.className + node.tagName).join();
    if (this.shown === now) return;
    this.shown = now;
    this.place.replaceChildren(...nodes);
  }

  add(key) {
    const cells = this.columns.map(column => {
      const cell = el('td', { className: column.kind || 'text', role: 'cell' });
      cell.dataset.title = column.title;
      return cell;
    });
    const line = { node: el('tr', { role: 'row' }, ...cells), cells };
    this.known.set(key, line);
    return line;
  }

  update(line, row) {
    const hidden = Boolean(this.matches) && !this.matches(row);
    if (line.node.hidden !== hidden) line.node.hidden = hidden;
    if (hidden) return;
    setClass(line.node, row.mark || '');
    this.columns.forEach((column, index) => {
      const cell = line.cells[index];
      if (column.draw) column.draw(cell, row);
      else setText(cell, String(column.cell(row) ?? '–'));
      if (column.tone) setClass(cell, (column.kind || 'text') + ' ' + column.tone(row));
    });
  }

  placeRows(rows, forced) {
    const held = !forced && this.order.length && isInUse(this.body);
    let order = rows.map(row => this.key(row));
    if (held) {
      const before = this.order.filter(key => this.known.has(key));
      order = before.concat(order.filter(key => !before.includes(key)));
    } else if (this.sorted) {
      const value = this.sorted.value, way = this.down ? -1 : 1;
      const sorted = rows.map((row, index) => [value(row), index, this.key(row)]);
      sorted.sort((a, b) => way * compare(a[0], b[0]) || a[1] - b[1]);
      order = sorted.map(([, , key]) => key);
    }
    this.order = order;
    let at = this.body.firstElementChild;
    for (const key of order) {
      const node = this.known.get(key)?.node;
      if (!node) continue;
      if (node === at) at = at.nextElementSibling;
      else this.body.insertBefore(node, at);
    }
  }
}

const isNumber = column => (column.kind || '').startsWith('number') || column.kind === 'spark';

// Nothing is less than anything.
function compare(a, b) {
  const [emptyA, emptyB] = [a, b].map(value => value === null || value === undefined || value === '');
  if (emptyA || emptyB) return emptyB - emptyA;
  return typeof a === 'number' ? a - b : String(a).localeCompare(String(b), 'en', { numeric: true });
}
