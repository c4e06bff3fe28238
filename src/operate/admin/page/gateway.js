// The process, its file, certificates and Redis.

import { reload } from './actions.js';
import { read } from './api.js';
import { $, caller, el, guard, keep, setClass, setText } from './dom.js';
import { count, number, span, time } from './format.js';
import { learn } from './overview.js';
import { Table } from './table.js';

let file = '';

const certificates = new Table($('certificates'), {
  label: 'certificates', key: row => row.use + ' ' + row.name + ' ' + row.file, empty: 'The file names no certificates.', sort: 'left',
  columns: [
    { title: 'left', kind: 'text', cell: row => row.expired ? 'expired' : count(row.days_left, 'day'), value: row => row.days_left,
      tone: row => row.expired || row.days_left <= 7 ? 'bad' : '' },
    { title: 'use', kind: 'text', cell: row => row.use.replaceAll('_', ' '), value: row => row.use },
    { title: 'name', kind: 'text', cell: row => row.name, value: row => row.name },
    { title: 'file', kind: 'key', cell: row => row.file, value: row => row.file },
  ],
});

const words = problem => (problem.file ? problem.file + ', ' : '') + 'line ' + problem.line + ': ' + problem.message;

function facts(status) {
  const found = [['file', status.file || 'none'], ['generation', number(status.generation)], ['listening', status.listening.join(' ')],
    ['version', status.version + ', process ' + status.pid], ['up', span(status.uptime_s)], ['workers', number(status.workers)],
    ['connections', number(status.connections)]];
  const last = status.last_reload;
  if (last) {
    found.push(['last reload', time(last.at * 1000) + ', ' + (last.result === 'ok' ? '' : 'failed: ') + last.told, last.result !== 'ok']);
    for (const problem of last.problems || []) found.push(['problem', words(problem), true]);
  }
  for (const warning of status.warnings || []) found.push(['warning', words(warning), true]);
  for (const one of status.issuers || []) {
    found.push(['issuer', one.issuer + ': ' + count(one.keys, 'key') + ', ' + span(one.age_s) + ' old' + (one.error ? '; ' + one.error : ''), !one.keys]);
  }
  if (status.snapshot) found.push(['snapshot', status.snapshot.file + (status.snapshot.error ? ': ' + status.snapshot.error : ''), Boolean(status.snapshot.error)]);
  if (status.redis) found.push(...redisFacts(status.redis));
  return found.map(([name, text, wrong], index) => ({ name, text, wrong, id: index + name }));
}

function redisFacts(found) {
  const servers = found.servers.map(one => ['redis', one.server + (one.role ? ', ' + one.role : '') + (one.up ? ' is up' : ' is down')
    + (one.mean_ms === null ? '' : ', ' + number(one.mean_ms) + ' ms a call'), !one.up]);
  const nodes = (found.nodes || []).map(one => ['gateway', one.name + ', version ' + one.version
    + (one.own ? ', this one' : one.file_differs ? ', its file differs' : ''), one.file_differs === true]);
  return servers.concat(nodes);
}

export async function refreshStatus() {
  let status;
  try { status = await read('/status'); } catch { return null; }
  if (status.token) Object.assign(caller, { name: status.token.name, mayChange: status.token.allow === 'all' });
  guard($('reload'));
  guard($('ban'));
  file = status.file;
  setText($('state'), [status.file || 'no file', 'generation ' + status.generation, 'up ' + span(status.uptime_s),
    status.token && status.token.name !== 'loopback' && 'token ' + status.token.name].filter(Boolean).join(' · '));
  keep($('facts'), facts(status), one => one.id, ({ name }) => el('div', {}, el('dt', {}, name), el('dd', {})), (node, { text, wrong }) => {
    setText(node.lastChild, text);
    setClass(node.lastChild, wrong ? 'bad' : '');
  });
  $('certificates-panel').hidden = !status.certificates?.length;
  if (status.certificates?.length) certificates.show(status.certificates);
  learn({ status });
  return status;
}

$('reload').onclick = () => reload(file);
