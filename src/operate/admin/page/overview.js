// The sentence on top, the tiles and the charts.

import { Chart } from './chart.js';
import { assess, fineSentence } from './assess.js';
import { $, el, keep, setClass, setText } from './dom.js';
import { count, milliseconds, number, percent, perSecond, sum, time } from './format.js';
import { read } from './api.js';
import { fill, record, spans } from './timeline.js';

const rates = { least: 1, write: value => number(Number(value.toPrecision(6))) };
const times = { least: 5, write: value => value >= 1000 ? value / 1000 + ' s' : Number(value.toPrecision(6)) + ' ms' };

const charts = {
  traffic: new Chart($('traffic'), {
    title: 'Traffic', about: 'requests/s by verdict', stacked: true, format: perSecond, axis: rates,
    series: [['admit', 'admitted'], ['wait', 'waited'], ['reject', 'rejected'], ['degrade', 'degraded'], ['ban', 'banned'],
      ['fault', 'errors'], ['other', 'banned or failed']].map(([id, name]) => ({ id, name, colour: id })),
  }),
  latency: new Chart($('latency'), {
    title: 'Latency', about: 'of the slowest upstream, over a minute', format: milliseconds, axis: times,
    series: [{ id: 'p50', name: 'servers p50', colour: 'admit', dash: 'line' }, { id: 'p99', name: 'servers p99', colour: 'ink', dash: 'dashed' },
      { id: 'wait_p99', name: 'our wait p99', colour: 'wait', dash: 'dotted' }],
  }),
  errors: new Chart($('errors'), {
    title: 'Errors', about: 'responses/s by maker', stacked: true, format: perSecond, axis: rates,
    series: [['5xx', 'servers (5xx)', 'reject'], ['server', 'no server answered', 'ban'], ['queue', 'waits in vain', 'wait'],
      ['fault', 'gateway', 'fault']].map(([id, name, colour]) => ({ id: 'by_' + id, name, colour })),
  }),
};

let range = '10m', last = null, seenAt = 0, stale = null;
const facts = {};

export function draw() {
  const line = spans[range];
  if (line.slot < 0 && last) line.advance(last.at_ms);
  if (line.slot < 0) return;
  for (const chart of Object.values(charts)) chart.show(line);
}

export function showEvent(event) {
  last = event;
  seenAt = Date.now();
  stale = null;
  record(event);
  showTiles(event);
  if (event.locations) $('errors').hidden = false;
  if (range === '10m') draw();
  showVerdict();
}

function showTiles(event) {
  const { requests } = event, all = sum(requests), rejected = requests.reject + requests.missing_key;
  const slowest = Math.max(-1, ...event.upstreams.map(one => one.response ? one.response.p99_ms : -1));
  const errors = event.upstreams.some(one => one.responses) ? sum(event.upstreams.map(one => one.responses?.['5xx'] || 0)) : null;
  const tiles = [
    ['requests/s', number(all), ''],
    ['rejected/s', number(rejected), rejected && percent(rejected, all)],
    ['5xx/s of servers', errors === null ? null : number(errors), '', errors > 0],
    ['servers p99', milliseconds(slowest < 0 ? null : slowest), ''],
    ['our wait p99', milliseconds(event.wait && event.wait.p99_ms), ''],
    ['in flight', number(event.in_flight), ''],
    ['waiting', number(event.waiting), ''],
    ['banned clients', number(event.bans), ''],
  ].filter(([, value]) => value !== null);
  keep($('tiles'), tiles, ([name]) => name, ([name]) => el('div', {}, el('dt', {}, name), el('dd', {}, el('b', {}), el('small', {}))), (node, [, value, more, bad]) => {
    setText(node.lastChild.firstChild, value);
    setText(node.lastChild.lastChild, more || '');
    setClass(node.lastChild, bad ? 'bad' : '');
  });
}

// The facts that other parts of the page read.
export function learn(news) {
  Object.assign(facts, news);
  showVerdict();
}

const LEVELS = ['fine', '', 'warn', 'bad'];

function showVerdict() {
  if (!last && !stale) return;
  const found = assess({ event: last, ...facts });
  if (stale) found.unshift({ level: 3, text: 'No numbers since ' + time(stale.since) + ': ' + stale.why + (last ? '. What stands below is from then' : ''), place: 'live' });
  const sentence = found.length ? found[0].text : fineSentence(last);
  setText($('sentence'), sentence);
  setClass($('verdict'), 'verdict ' + LEVELS[found[0]?.level || 0]);
  const rest = found.slice(1);
  $('problems').hidden = !rest.length;
  keep($('problems'), rest, one => one.text.replace(/[\d.,]+/g, ''), () => el('li', {}, el('a', {})), (node, one) => {
    setClass(node, LEVELS[one.level]);
    setText(node.firstChild, one.text);
    if (node.firstChild.hash !== '#' + one.place) node.firstChild.href = '#' + one.place;
  });
  // Said aloud only when something else is wrong than before.
  const said = found.length ? count(found.length, 'problem') + ': ' + found.map(one => one.place).join(' ') : 'Fine';
  if ($('announced').dataset.said !== said) {
    $('announced').dataset.said = said;
    setText($('announced'), sentence);
  }
  const title = (found.length ? '(' + found.length + ') ' : '') + 'Sluicegate';
  if (document.title !== title) document.title = title;
}

export function goStale(why) {
  stale = { since: seenAt || Math.round(performance.timeOrigin), why };
  showVerdict();
  return stale.since;
}

// The history of the server, which an old one does not have.
export async function loadHistory(span) {
  try {
    const history = await read('/history?span=' + span);
    if (span === '1d') spans[span].clear();
    fill(spans[span], history);
    if (history.locations?.length) $('errors').hidden = false;
    draw();
  } catch { /* Without it the charts begin now. */ }
}

export const chosenRange = () => range;

$('range').onclick = event => {
  if (!event.target.value) return;
  range = event.target.value;
  for (const one of $('range').children) one.ariaPressed = String(one.value === range);
  if (range === '1d') loadHistory('1d');
  draw();
};
