// The numbers of the last steps by name, in rings: what charts and sparklines draw.

import { sum } from './format.js';

// Names beyond it push out the one that was written longest ago.
const NAMES_MAX = 1200;

export class Timeline {
  constructor(stepMs, size) {
    Object.assign(this, { stepMs, size, slot: -1, first: Infinity, rings: new Map() });
  }

  get endMs() { return this.slot * this.stepMs; }

  // Begins the step of this moment; steps in between have no numbers.
  advance(ms) {
    const slot = Math.floor(ms / this.stepMs);
    if (this.slot < 0 || Math.abs(slot - this.slot) > this.size) {
      for (const ring of this.rings.values()) ring.fill(NaN);
      this.slot = slot;
    }
    for (; this.slot < slot;) {
      this.slot += 1;
      for (const ring of this.rings.values()) ring[this.slot % this.size] = NaN;
    }
  }

  put(name, value, slot = this.slot) {
    if (slot > this.slot || slot <= this.slot - this.size || value === null || value === undefined) return;
    let ring = this.rings.get(name);
    if (!ring) {
      if (this.rings.size >= NAMES_MAX) this.rings.delete(this.rings.keys().next().value);
      this.rings.set(name, ring = new Float64Array(this.size).fill(NaN));
    }
    ring[slot % this.size] = value;
    if (slot < this.first) this.first = slot;
  }

  add(name, value, slot) {
    const ring = this.rings.get(name), before = ring ? ring[slot % this.size] : NaN;
    this.put(name, (Number.isNaN(before) ? 0 : before) + value, slot);
  }

  // The last `count` numbers, oldest first; null if the name has none.
  read(name, count = this.size) {
    const ring = this.rings.get(name);
    if (!ring) return null;
    const found = new Float64Array(count);
    const first = this.slot - count + 1;
    for (let index = 0; index < count; index += 1) found[index] = first + index < 0 ? NaN : ring[(first + index) % this.size];
    return found;
  }

  clear() { Object.assign(this, new Timeline(this.stepMs, this.size)); }
}

export const spans = { '10m': new Timeline(1000, 600), '1d': new Timeline(60000, 1440) };

export const CLASSES = ['2xx', '3xx', '4xx', '5xx'];

// Puts one event into the ten minutes.
export function record(event) {
  const line = spans['10m'];
  line.advance(event.at_ms);
  const { requests } = event;
  for (const [verdict, value] of Object.entries(requests)) line.put(verdict, value);
  line.put('reject', requests.reject + requests.missing_key);
  line.put('wait_p99', event.wait?.p99_ms);
  const times = event.upstreams.map(one => one.response).filter(Boolean);
  line.put('p50', times.length ? Math.max(...times.map(one => one.p50_ms)) : NaN);
  line.put('p99', times.length ? Math.max(...times.map(one => one.p99_ms)) : NaN);
  for (const one of event.limits) {
    line.put('l' + one.limit, one.admitted_per_s + one.waited_per_s + one.rejected_per_s);
    line.put('L' + one.limit, one.rejected_per_s);
  }
  for (const one of event.upstreams) {
    if (!one.responses) continue;
    line.put('u' + one.upstream, sum(one.responses));
    line.put('U' + one.upstream, one.responses['5xx']);
  }
  if (!event.locations) return;
  for (const one of event.locations) {
    line.put('o' + one.location, sum(one.responses) + sum(one.own));
    line.put('O' + one.location, one.responses['5xx'] + one.own.server + one.own.fault);
  }
  line.put('by_5xx', sum(event.locations.map(one => one.responses['5xx'])));
  for (const name of ['queue', 'server', 'fault']) line.put('by_' + name, sum(event.locations.map(one => one.own[name])));
}

// Puts the history of the server into a span: counts per step, oldest first; the rest beside the busiest has no name.
export function fill(line, history) {
  if (!history.end_ms) return;
  const end = Math.floor(history.end_ms / line.stepMs), perSecond = 1000 / history.step_ms;
  if (line.slot < 0) line.advance(history.end_ms);
  // Events told some steps already, and more exactly.
  const told = new Map([...line.rings].map(([name, ring]) => [name, ring.slice()]));
  const isTold = (name, slot) => told.has(name) && !Number.isNaN(told.get(name)[slot % line.size]);
  const each = (numbers, use) => (numbers || []).forEach((value, index) => {
    if (value !== null) use(value, end - numbers.length + 1 + index);
  });
  const add = (numbers, ...names) => each(numbers, (value, slot) => {
    for (const name of names) if (!isTold(name, slot)) line.add(name, value * perSecond, slot);
  });
  const most = (numbers, name) => each(numbers, (value, slot) => {
    const before = line.rings.get(name)?.[slot % line.size];
    if (!isTold(name, slot) && !(before > value)) line.put(name, value, slot);
  });
  for (const one of history.limits || []) {
    const name = 'l' + one.limit;
    add(one.admitted, name);
    add(one.waited, name, ' waited');
    add(one.rejected, name, 'L' + one.limit, ' rejected');
  }
  for (const one of history.locations || []) {
    for (const name of CLASSES) add(one[name], 'o' + one.location, ' answered');
    add(one['5xx'], 'O' + one.location, 'by_5xx');
    add(one.own, 'o' + one.location, ' own');
  }
  for (const one of history.upstreams || []) {
    for (const name of CLASSES) add(one[name], 'u' + one.upstream);
    add(one['5xx'], 'U' + one.upstream);
    most(one.p50_ms, 'p50');
    most(one.p99_ms, 'p99');
  }
  splitVerdicts(line, isTold);
}

// The history counts by limit and by location. Of those that were answered some had waited; of the gateway's own
// answers some were rejections.
function splitVerdicts(line, isTold) {
  const [answered, waited, own, rejected] = [' answered', ' waited', ' own', ' rejected'].map(name => {
    const found = line.read(name);
    line.rings.delete(name);
    return index => found?.[index] || 0;
  });
  for (let index = 0; index < line.size; index += 1) {
    const slot = line.slot - line.size + 1 + index;
    if (slot < 0 || isTold('admit', slot) || !(answered(index) + own(index) >= 0)) continue;
    const late = Math.min(answered(index), waited(index)), refused = Math.min(own(index), rejected(index));
    line.put('admit', answered(index) - late, slot);
    line.put('wait', late, slot);
    line.put('reject', refused, slot);
    line.put('other', own(index) - refused, slot);
  }
}
