// The changes that the page offers, each after a dialog that says what will happen.

import { change } from './api.js';
import { ask, notice } from './dialog.js';
import { button, guard, setText } from './dom.js';

const REASON = { name: 'reason', label: 'Reason, for the audit log', maxLength: 200 };

export const keyPath = (limit, key) => '/limits/' + encodeURIComponent(limit) + '/keys/' + encodeURIComponent(key);

// Called after each change, so that its effect is seen at once.
let refresh = () => {};
export const afterChange = act => { refresh = act; };

async function offer(title, effect, fields, confirm, [method, path, body, done]) {
  const value = (part, values) => typeof part === 'function' ? part(values) : part;
  await ask(title, effect, fields, confirm, async values => {
    const answer = await change(method, value(path, values), value(body, values) || values);
    notice(value(done, { ...values, answer }));
    refresh();
  });
}

export const resetKey = (limit, key) => offer('Reset ' + key,
  'The limit ' + limit + ' forgets what this key has used. Its next requests find a fresh counter. Requests that wait keep their turn.',
  [REASON], 'Reset', ['POST', keyPath(limit, key) + '/reset', null, key + ' was reset.']);

export const grantKey = (limit, key) => offer('Grant other numbers to ' + key,
  'The limit ' + limit + ' counts this key by these numbers until the grant ends. The ordinary counter stands still.', [
    { name: 'rate', label: 'Rate, e.g. 100/s', required: true }, { name: 'burst', label: 'Burst; empty = that of the limit', inputMode: 'numeric' },
    { name: 'for', label: 'For, e.g. 30m', value: '1h', required: true }, REASON], 'Grant',
  ['POST', keyPath(limit, key) + '/grant', ({ burst, ...values }) => !burst ? values
    : { ...values, burst: /^\d+$/.test(burst) ? Number(burst) : burst }, key + ' has other numbers now.']);

export const endGrant = (limit, key) => offer('End the grant of ' + key, 'The limit ' + limit + ' counts this key by its ordinary counter again.',
  [REASON], 'End grant', ['DELETE', keyPath(limit, key) + '/grant', null, key + ' has the ordinary numbers again.']);

export const banClient = banned => offer('Ban a client', 'Its requests are turned away until the ban ends, whatever limits and bypasses say.', [
  { name: 'ip', label: 'Address, network or account=NAME', value: banned || '', required: true },
  { name: 'for', label: 'For, e.g. 10m', value: '10m', required: true }, REASON], 'Ban',
['POST', '/bans', ({ ip, ...values }) => ip.startsWith('account=') ? { ...values, account: ip.slice(8) } : { ...values, ip },
  ({ ip }) => ip + ' is banned.']);

export const unban = banned => offer('Unban ' + banned, 'Its requests are judged again at once, and its strikes are forgotten.', [REASON], 'Unban',
  ['DELETE', '/bans/' + encodeURIComponent(banned), null, banned + ' is no longer banned.']);

export function drain(row, begin, last) {
  const effects = begin ? ['The server gets no new requests; those in flight end by themselves.'] : ['The server gets requests again.'];
  if (last) effects.push('No other server of ' + row.upstream + ' is up: its requests will be answered with 503.');
  const path = '/upstreams/' + encodeURIComponent(row.upstream) + '/servers/' + encodeURIComponent(row.server);
  return offer((begin ? 'Drain ' : 'Undrain ') + row.server, effects, [REASON], begin ? 'Drain' : 'Undrain',
    ['POST', path + (begin ? '/drain' + (last ? '?force=true' : '') : '/undrain'), null, row.server + (begin ? ' drains.' : ' gets requests again.')]);
}

export const reload = file => offer('Reload the file', [(file || 'The file') + ' is read again and put in force if it is valid.',
  'Counters, queues and bans stay; a file with problems changes nothing.'], [REASON], 'Reload',
['POST', '/reload', null, ({ answer }) => 'Reloaded: ' + answer.changes + '.']);

// Buttons in a cell, one for each [text, name, act] that is not null; they stay while their names stay.
export function drawActions(cell, row, list) {
  cell.row = row;
  const wanted = list.filter(Boolean), names = wanted.map(([text, name]) => text + name).join('\n');
  if (cell.dataset.names !== names) {
    cell.dataset.names = names;
    const focused = cell.contains(document.activeElement) && document.activeElement.dataset.focus;
    cell.replaceChildren(...wanted.map(([text, name, act]) => button(text, name, () => act(cell.row))));
    if (focused) [...cell.children].find(node => node.dataset.focus === focused)?.focus();
  }
  for (const node of cell.children) guard(node);
}

export function drawLink(cell, text, name, act) {
  if (!cell.firstChild) cell.append(button(text, name, act, 'link'));
  else setText(cell.firstChild, text);
}
