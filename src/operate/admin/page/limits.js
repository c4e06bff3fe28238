// Limits and their keys, and the search over both.

import { drawActions, drawLink, endGrant, banClient, grantKey, keyPath, resetKey } from './actions.js';
import { Refused, read } from './api.js';
import { findFlood } from './assess.js';
import { drawSpark } from './chart.js';
import { $, setOptions, setText } from './dom.js';
import { number, perSecond, span } from './format.js';
import { learn } from './overview.js';
import { Table } from './table.js';
import { spans } from './timeline.js';

const per = (title, of, about) => ({ title, kind: 'number', about, cell: row => number(of(row)), value: of });

const acts = limit => limit.shadow_of !== null ? ' (shadow of ' + limit.shadow_of + ')'
  : limit.paused ? ' (paused by ' + limit.paused.by + ')' : limit.dry_run ? ' (dry run)' : limit.enforce !== null ? ' (enforced for ' + limit.enforce + ' of the keys)' : '';
const classes = limit => (limit.classes ?? []).map(one => '; ' + one.class + ' ' + perSecond(one.admitted.per_s) + ', rejected '
  + perSecond(one.rejected.per_s)).join('');
// A dry run rejects nothing.
const spares = limit => limit.dry_run || limit.enforce !== null;

const asks = row => row.admitted.per_s + row.waited.per_s + row.rejected.per_s;

let all = [], chosen = false, lookedUp = null, keysTurn = 0, asked = '';

const limits = new Table($('limits'), {
  label: 'limits', key: row => row.limit, empty: 'The file has no limits.', sort: 'rejected/s',
  columns: [
    { title: 'limit', kind: 'text name', value: row => row.limit, draw: (cell, row) => drawLink(cell, row.limit, 'limit ' + row.limit, () => choose(row.limit)) },
    { title: 'counts', kind: 'text soft', cell: row => row.numbers + ', by ' + row.key + acts(row) + classes(row)
      + (row.owner ? '; owned by ' + row.owner : '') },
    { title: '2 min', kind: 'spark', about: 'requests of the last 2 minutes; filled: rejected', value: asks,
      draw: (cell, row) => drawSpark(cell, spans['10m'], 'l' + row.limit, 'L' + row.limit, 'requests of ' + row.limit + ', now '
        + perSecond(asks(row))) },
    per('admitted/s', row => row.admitted.per_s),
    { ...per('waited/s', row => row.waited.per_s), kind: 'number least' },
    { ...per('rejected/s', row => row.rejected.per_s), value: row => row.rejected.per_s + row.rejected.per_s_1m / 1e4, tone: row => row.rejected.per_s > 0 ? 'strong' : '' },
    { ...per('1 min', row => row.rejected.per_s_1m, 'rejected per second, over the last minute'), kind: 'number less' },
    { title: 'would reject/s', kind: 'number less', value: row => spares(row) ? row.dry_run_rejected.per_s : null,
      cell: row => spares(row) ? number(row.dry_run_rejected.per_s) : '–' },
    per('waiting', row => row.waiting),
    { ...per('keys', row => row.keys), kind: 'number less' },
  ],
});

const askedRate = per('asked/s', row => row.asked_per_s, 'units, faded with a half-life of a minute');
const refusedRate = { ...per('refused/s', row => row.refused_per_s), tone: row => row.refused_per_s > 0 ? 'strong' : '' };

const keys = new Table($('keys'), {
  label: 'keys', key: row => row.limit + ' ' + row.key, empty: '',
  columns: [
    { title: 'key', kind: 'key', cell: row => row.key, value: row => row.key },
    askedRate,
    refusedRate,
    { ...per('left', row => row.remaining), cell: row => row.classes?.map(one => one.class + ' ' + number(one.remaining)).join(', ') ?? number(row.remaining)
      + (row.leased ? ', leased: ' + number(row.leased.here) + ' here, ' + number(row.leased.store) + ' in the store' : '') },
    { title: 'next in', kind: 'number less', about: 'seconds until one more unit fits', cell: row => span(row.reset_s), value: row => row.reset_s },
    { ...per('waiting', row => row.waiting), kind: 'number less' },
    { title: 'grant', kind: 'text less', value: row => row.grant?.numbers, cell: row => row.grant && row.grant.numbers + ', ' + span(row.grant.left_s) + ' left' },
    { title: '', kind: 'actions', draw: (cell, row) => drawActions(cell, row, [
      ['Reset…', 'reset ' + row.limit + ' ' + row.key, row => resetKey(row.limit, row.key)],
      ['Grant…', 'grant ' + row.limit + ' ' + row.key, row => grantKey(row.limit, row.key)],
      row.grant && ['End grant…', 'end ' + row.limit + ' ' + row.key, row => endGrant(row.limit, row.key)],
      row.ban && ['Ban…', 'ban ' + row.limit + ' ' + row.key, row => banClient(row.ban)],
    ]) },
  ],
});

export function choose(limit) {
  chosen = true;
  $('limit').value = limit;
  showLimits();
  showKeys();
}

export async function refreshLimits() {
  try {
    ({ limits: all } = await read('/limits'));
  } catch (error) {
    if (error instanceof Refused) limits.fail(error.message);
    return;
  }
  const changed = setOptions($('limit'), all.map(limit => limit.limit));
  setOptions($('refused-by'), all.map(limit => limit.limit), 'all limits');
  setText($('limits-count'), all.length > 1 ? String(all.length) : '');
  // Until someone chooses, the keys are those of the limit that rejects most.
  const busiest = all.reduce((most, limit) => !most || rejections(limit) > rejections(most) ? limit : most, null);
  if (!chosen && busiest && rejections(busiest) > 0) $('limit').value = busiest.limit;
  showLimits();
  if (changed) showKeys();
  watchFlood(busiest);
}

const rejections = limit => limit.rejected.per_s_1m;

function showLimits() {
  limits.show(all.map(limit => ({ ...limit, mark: limit.limit === $('limit').value ? 'chosen' : '' })));
}

let flooded = null;
async function watchFlood(limit) {
  let flood = null;
  if (limit && limit.rejected.per_s >= 5) {
    try {
      const path = '/limits/' + encodeURIComponent(limit.limit) + '/keys?top=1&by=refused';
      flood = findFlood(limit, (await read(path)).keys);
    } catch { /* Names of keys may not be kept. */ }
  }
  if (flood !== flooded) learn({ flood: flooded = flood });
}

export async function showKeys() {
  const limit = $('limit').value, by = $('by').value, turn = keysTurn += 1;
  const config = all.find(one => one.limit === limit);
  if (!config) return keys.show([]);
  try {
    const found = await read('/limits/' + encodeURIComponent(limit) + '/keys?top=20&by=' + by);
    if (turn !== keysTurn) return;
    // Another list is another order.
    if (asked !== limit + ' ' + by) {
      asked = limit + ' ' + by;
      keys.sorted = null;
      keys.sortBy(by === 'asked' ? askedRate : refusedRate);
    }
    keys.rename(refusedRate, config.dry_run ? 'would refuse/s' : 'refused/s');
    keys.empty = by === 'asked' ? 'No key has asked lately.' : 'No key was refused lately.';
    const rows = found.keys.map(key => ({ ...key, limit }));
    if (lookedUp?.limit === limit && !rows.some(row => row.key === lookedUp.key)) rows.push(lookedUp);
    keys.show(rows);
  } catch (error) {
    if (turn === keysTurn && error instanceof Refused) keys.fail(error.message);
  }
}

// === Search ===

const listeners = [];
export const onSearch = act => listeners.push(act);

const contains = (text, ...values) => values.some(value => value && value.toLowerCase().includes(text));
export const searched = text => (...values) => !text || contains(text, ...values);

$('search').oninput = () => {
  const text = $('search').value.trim().toLowerCase(), hit = searched(text);
  limits.filter(text ? row => hit(row.limit, row.numbers, row.key) : null);
  // The keys of a limit that is searched for by its name all match.
  keys.filter(text ? row => hit(row.key, row.limit) : null);
  for (const act of listeners) act(text ? hit : null);
  if (!text) forget();
};

function forget() {
  lookedUp = null;
  $('found').hidden = true;
}

// Enter asks for a key that is not among the heaviest.
$('find').onsubmit = async event => {
  event.preventDefault();
  const text = $('search').value.trim(), limit = $('limit').value;
  forget();
  if (!text || !limit || all.some(one => one.limit === text)) return text && limit && choose(text);
  const key = text.includes('=') ? text : (/^[\d.]+$|:.*:/.test(text) ? 'ip=' : 'account=') + text;
  try {
    const found = await read(keyPath(limit, key));
    lookedUp = { ...found, limit };
    setText($('found'), 'Of ' + limit + ', ' + found.key + ' is looked up below.');
    keys.filter(row => row.key === found.key || contains(text.toLowerCase(), row.key));
    await showKeys();
  } catch (error) { setText($('found'), 'Looked up ' + key + ' in ' + limit + ': ' + error.message.trim() + '.'); }
  $('found').hidden = false;
};

addEventListener('keydown', event => {
  if (event.key !== '/' || event.ctrlKey || event.metaKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || $('dialog').open) return;
  event.preventDefault();
  $('search').select();
  $('search').focus();
});

$('limit').onchange = () => choose($('limit').value);
$('by').onchange = () => showKeys();
$('choice').onsubmit = event => event.preventDefault();
