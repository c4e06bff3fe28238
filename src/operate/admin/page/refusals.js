// The last refusals, grouped by limit, key and reason.

import { $, setText } from './dom.js';
import { number, time } from './format.js';
import { onSearch } from './limits.js';
import { Table } from './table.js';

const GROUPS_MAX = 200, MINUTES = 10;
// An event has so many refusals at most; if all are new, there were more.
const ROWS_MAX = 100;

const groups = new Map();
let newest = 0, now = 0, paused = false, hit = null;

const table = new Table($('refusals'), {
  label: 'last refusals', key: row => row.id, empty: 'No request was refused lately.', sort: 'last',
  columns: [
    { title: 'limit', kind: 'text', cell: row => row.limit, value: row => row.limit },
    { title: 'key', kind: 'key', cell: row => row.key ?? 'unknown', value: row => row.key },
    { title: 'times', kind: 'number', about: 'those that this page has seen; + : there were more', cell: row => '×' + number(row.times) + (row.more ? '+' : ''), value: row => row.times },
    { title: 'last', kind: 'number', about: 'when the last one was refused', cell: row => ago(row.at_ms), value: row => row.at_ms },
    { title: 'why', kind: 'text less', cell: row => row.cause.replaceAll('_', ' '), value: row => row.cause },
    { title: 'location', kind: 'text less', cell: row => row.location, value: row => row.location },
  ],
});

const ago = ms => now - ms < 60000 ? number(Math.max(0, Math.round((now - ms) / 100) / 10)) + ' s ago' : time(ms);

export function recordRefusals(event) {
  const fresh = event.refusals.filter(one => one.at_ms > newest);
  // Of the same millisecond some may have been seen already; they count once.
  const more = newest > 0 && fresh.length >= ROWS_MAX;
  for (const one of fresh.reverse()) {
    const id = [one.limit, one.key, one.cause, one.location].join('\n');
    const group = groups.get(id) || { id, times: 0, more: false };
    groups.delete(id);
    groups.set(id, Object.assign(group, one, { id, times: group.times + 1, more: group.more || more }));
  }
  newest = Math.max(newest, ...event.refusals.map(one => one.at_ms));
  for (const [id, group] of groups) {
    if (groups.size <= GROUPS_MAX && event.at_ms - group.at_ms < MINUTES * 60000) break;
    groups.delete(id);
  }
  if (paused) return;
  now = event.at_ms;
  show();
}

function show(forced) {
  const limit = $('refused-by').value;
  table.matches = row => (!limit || row.limit === limit) && (!hit || hit(row.limit, row.key, row.ip, row.location));
  table.show([...groups.values()].map(group => ({ ...group })), forced);
}

onSearch(found => {
  hit = found;
  show(true);
});
$('refused-by').onchange = () => show(true);
$('pause').onclick = () => {
  paused = !paused;
  $('pause').ariaPressed = String(paused);
  setText($('pause'), paused ? 'Go on' : 'Pause');
};
