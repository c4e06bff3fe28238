// Upstreams, their servers, and locations.

import { drawActions, drain } from './actions.js';
import { Refused, read } from './api.js';
import { drawSpark } from './chart.js';
import { $ } from './dom.js';
import { milliseconds, number, perSecond, span, sum } from './format.js';
import { learn } from './overview.js';
import { Table } from './table.js';
import { CLASSES, spans } from './timeline.js';

const per = (title, of, about) => ({ title, kind: 'number', about, cell: row => number(of(row)), value: of });
const bad = column => ({ ...column, tone: row => column.value(row) > 0 ? 'bad' : '' });

const upstreams = new Table($('upstreams'), {
  label: 'upstreams', key: row => row.upstream, empty: 'The file names no servers.', sort: '5xx/s',
  columns: [
    { title: 'upstream', kind: 'text name', cell: row => row.upstream, value: row => row.upstream },
    { title: 'servers', kind: 'text', cell: row => [['up', row.up], ['down', row.down], ['ejected', row.ejected], ['draining', row.draining]]
      .filter(([, many]) => many).map(([state, many]) => many + ' ' + state).join(', '), value: row => row.up,
    tone: row => row.down + row.ejected ? 'bad' : '' },
    { title: '2 min', kind: 'spark', about: 'responses of the last 2 minutes; filled: 5xx', value: row => row.responses && sum(row.responses),
      draw: (cell, row) => drawSpark(cell, spans['10m'], 'u' + row.upstream, 'U' + row.upstream, 'responses of ' + row.upstream
        + (row.responses ? ', now ' + perSecond(sum(row.responses)) : '')) },
    per('responses/s', row => row.responses && sum(row.responses)),
    { ...bad(per('5xx/s', row => row.responses?.['5xx'])) },
    { title: 'p50', kind: 'number least', about: 'of the last minute', cell: row => milliseconds(row.response?.p50_ms), value: row => row.response?.p50_ms },
    { title: 'p99', kind: 'number', about: 'of the last minute', cell: row => milliseconds(row.response?.p99_ms), value: row => row.response?.p99_ms },
    { ...per('in flight', row => row.in_flight), kind: 'number least' },
    per('waiting', row => row.waiting),
  ],
});

const servers = new Table($('servers'), {
  label: 'servers', key: row => row.upstream + ' ' + row.server, empty: 'The file names no servers.', sort: 'state',
  columns: [
    { title: 'upstream', kind: 'text', cell: row => row.upstream, value: row => row.upstream },
    { title: 'server', kind: 'key', cell: row => row.server, value: row => row.server },
    { title: 'state', kind: 'text', cell: row => row.state, value: row => row.state, tone: row => row.state === 'up' ? '' : 'bad' },
    { ...bad(per('5xx', row => row.responses?.['5xx'], 'since the start')) },
    { ...per('responses', row => row.responses && sum(row.responses), 'since the start'), kind: 'number less' },
    per('in flight', row => row.in_flight),
    { ...per('ejections', row => row.ejections), kind: 'number less' },
    { title: 'last error', kind: 'text', cell: row => row.last_error && row.last_error.error + ', ' + span(row.last_error.seconds_ago) + ' ago',
      value: row => row.last_error && -row.last_error.seconds_ago },
    { title: '', kind: 'actions', draw: (cell, row) => drawActions(cell, row, [
      [row.state === 'draining' ? 'Undrain…' : 'Drain…', 'drain ' + row.upstream + row.server,
        row => drain(row, row.state !== 'draining', row.state !== 'draining' && !row.hasOther)]]) },
  ],
});

// Answers of the gateway itself by their cause, in words.
const CAUSES = { limit: ['limits', 'rejected by limits'], ban: ['bans', 'banned clients'], queue: ['waits', 'waits that ended in vain'],
  server: ['no server', 'no server answered: 502, 503, 504'], fault: ['faults', 'other errors of the gateway'] };
const all = row => sum(row.responses) + sum(row.own);

const locations = new Table($('locations'), {
  label: 'locations', key: row => row.location, empty: 'No request came lately.', sort: 'limits',
  columns: [
    { title: 'location', kind: 'text name', cell: row => row.location + (row.owner ? ' (' + row.owner + ')' : ''), value: row => row.location },
    { title: '2 min', kind: 'spark', about: 'requests of the last 2 minutes; filled: errors', value: all,
      draw: (cell, row) => drawSpark(cell, spans['10m'], 'o' + row.location, 'O' + row.location, 'requests of ' + row.location + ', now ' + perSecond(all(row))) },
    ...CLASSES.map(name => ({ ...per(name, row => row.responses[name]), kind: name === '3xx' ? 'number least' : 'number',
      tone: row => name === '5xx' && row.responses[name] > 0 ? 'bad' : '' })),
    ...Object.keys(CAUSES).map(name => {
      const column = { ...per(CAUSES[name][0], row => row.own[name], CAUSES[name][1]), kind: 'number own' + (name === 'ban' || name === 'queue' ? ' least' : '') };
      return name === 'server' || name === 'fault' ? bad(column) : column;
    }),
  ],
});

export function showRates(event) {
  upstreams.show(event.upstreams);
  if (!event.locations) return;
  $('by-location').hidden = false;
  locations.show(event.locations);
}

const hasOther = (rows, row) => rows.some(other => other.upstream === row.upstream && other.server !== row.server && other.state === 'up');

export async function refreshServers() {
  try {
    const found = await read('/upstreams');
    const rows = found.upstreams.flatMap(one => one.servers.map(server => ({ ...server, upstream: one.upstream })));
    servers.show(rows.map(row => ({ ...row, hasOther: hasOther(rows, row) })));
    learn({ upstreams: found.upstreams });
  } catch (error) { if (error instanceof Refused) servers.fail(error.message); }
}
