// What is wrong, worst first, as sentences; and one sentence if nothing is.

import { count, milliseconds, mostly, number, percent, perSecond, span, sum, time } from './format.js';

// Servers fail, or are said to, from this share and rate on.
const FAILING = { share: 0.02, perSecond: 0.2 };
// A key floods a limit if it makes at least this share of its rejections, and so many.
const FLOOD = { share: 0.5, perSecond: 10 };
const DAYS_LEFT = 7;

// A problem is { level, text, place }: level 3 is a failure now, 2 a risk; `place` is the id of its part.
export function assess({ event, status, upstreams, flood }) {
  const found = [];
  const add = (level, text, place) => found.push({ level, text, place });
  if (event) {
    serversOf(event, add);
    ownAnswers(event, add);
  }
  if (flood) add(2, flood, 'keys');
  if (status) standing(status, add);
  if (upstreams) partlyUp(upstreams, add);
  return found.sort((a, b) => b.level - a.level);
}

function serversOf(event, add) {
  for (const one of event.upstreams) {
    const away = [[one.down, 'down'], [one.ejected, 'ejected'], [one.draining, 'draining']].filter(([many]) => many);
    if (!one.up && away.length) add(3, 'No server of ' + one.upstream + ' is up (' + away.map(pair => pair.join(' ')).join(', ') + ')', 'servers');
    const errors = one.responses?.['5xx'] || 0, all = one.responses ? sum(one.responses) : 0;
    if (errors >= FAILING.perSecond && errors >= all * FAILING.share) {
      add(3, one.upstream + ' answers ' + percent(errors, all) + ' of its requests with 5xx (' + perSecond(errors) + ')', 'upstreams');
    }
    if (one.stopped_s > 0) add(2, one.upstream + ' asked for a pause: ' + span(one.stopped_s) + ' left', 'upstreams');
  }
}

function ownAnswers(event, add) {
  const rates = name => event.locations.map(one => [one.location, one.own[name]]).filter(([, rate]) => rate > 0);
  const all = sum(event.requests);
  const told = (level, name, words) => {
    const pairs = rates(name), rate = sum(pairs.map(pair => pair[1]));
    if (rate >= FAILING.perSecond && rate >= all * 0.001) add(level, perSecond(rate) + ' ' + words + ' at ' + mostly(pairs), 'locations');
  };
  if (event.locations) {
    told(3, 'server', 'find no server (502, 503, 504)');
    told(2, 'queue', 'wait in vain');
    if (sum(event.locations.map(one => one.own.fault)) >= Math.max(1, all * 0.05)) told(2, 'fault', 'are refused by the gateway itself (4xx, 5xx)');
  } else if (event.requests.fault >= 1 && event.requests.fault >= all * 0.05) {
    add(3, perSecond(event.requests.fault) + ' are answered with an error by the gateway', 'traffic');
  }
}

function standing(status, add) {
  const { redis } = status;
  if (redis && !redis.reachable) {
    const since = redis.unreachable_since_ms === null ? '' : ' since ' + time(redis.unreachable_since_ms);
    add(3, 'Redis does not answer' + since + ': shared limits use on_failure', 'facts');
  }
  for (const one of status.certificates || []) {
    if (one.expired) add(3, 'The certificate ' + one.file + ' has expired', 'certificates');
    else if (one.days_left <= DAYS_LEFT) add(2, 'The certificate ' + one.file + ' expires in ' + count(one.days_left, 'day'), 'certificates');
  }
  if (status.last_reload?.result === 'failed') add(2, 'The last reload failed: the numbers before it are in force', 'facts');
  for (const { limit, paused } of status.paused || []) {
    add(3, 'The limit ' + limit + ' is paused: ' + span(paused.left_s) + ' left, by ' + paused.by + (paused.reason ? ': ' + paused.reason : ''), 'limits');
  }
  for (const one of status.issuers || []) if (!one.keys) add(3, 'The keys of the issuer ' + one.issuer + ' are unknown: its tokens get 503', 'facts');
  for (const one of status.files || []) add(2, one.file + ' ' + one.trouble, 'facts');
  for (const one of status.shared_limits || []) add(2, 'The limit ' + one.limit + ': ' + one.trouble, 'facts');
  if (status.snapshot?.error) add(2, 'The snapshot cannot be written: ' + status.snapshot.error, 'facts');
}

function partlyUp(upstreams, add) {
  for (const { upstream, servers } of upstreams) {
    const broken = servers.filter(server => ['down', 'ejected'].includes(server.state));
    if (!broken.length || !servers.some(server => server.state === 'up')) continue;
    const first = broken[0];
    add(2, number(broken.length) + ' of ' + count(servers.length, 'server') + ' of ' + upstream + ' is ' + first.state + ': ' + first.server
      + (first.last_error ? ' (' + first.last_error.error + ')' : ''), 'servers');
  }
}

// The key that makes most rejections of the limit that rejects most.
export function findFlood(limit, keys) {
  const key = keys[0], rejected = limit.rejected.per_s_1m;
  if (!key || key.refused_per_s < FLOOD.perSecond || key.refused_per_s < rejected * FLOOD.share || limit.rejected.per_s < FLOOD.perSecond / 2) return null;
  return key.key + ' makes ' + percent(Math.min(key.refused_per_s, rejected), rejected) + ' of the rejections of ' + limit.limit
    + ' (' + perSecond(limit.rejected.per_s) + ')';
}

export function fineSentence(event) {
  const { requests } = event;
  const all = sum(requests);
  const rejected = requests.reject + requests.missing_key, parts = [];
  parts.push(all ? number(Math.round(all * 10) / 10) + ' requests/s' : 'no requests now');
  if (rejected > 0) {
    const who = mostly(event.limits.map(one => [one.limit, one.rejected_per_s]));
    parts.push(percent(rejected, all) + ' rejected' + (who ? ' by ' + who : ''));
  }
  if (requests.ban > 0) parts.push(percent(requests.ban, all) + ' banned');
  const times = event.upstreams.map(one => one.response?.p99_ms).filter(value => value !== undefined);
  if (times.length && all) parts.push('servers answer in ' + milliseconds(Math.max(...times)) + ' (p99)');
  return 'Fine: ' + parts.join(', ');
}

