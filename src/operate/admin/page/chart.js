// Charts on canvas: axes with units, a legend that shows values and hides series, and a reading line that the pointer
// and the keyboard move.

import { el, setText } from './dom.js';
import { minute, time } from './format.js';

let colours = null;
const colourOf = name => (colours ||= getComputedStyle(document.documentElement)).getPropertyValue('--' + name);
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => { colours = null; });

const GUTTER = { left: 46, right: 6, top: 8, bottom: 20 };
const DASHES = { line: [], dashed: [5, 3], dotted: [1.5, 2.5] };

// A canvas as sharp as the screen; true if its size changed.
function fit(canvas, width, height) {
  const scale = window.devicePixelRatio || 1, w = Math.round(width * scale), h = Math.round(height * scale);
  if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
  const pen = canvas.getContext('2d');
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return pen;
}

// The least of 1, 2, 5, 10, 20 … that leaves at most `count` steps below `top`.
function niceStep(top, count) {
  const raw = top / count, power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 5, 10].map(factor => factor * power).find(step => step >= raw * 0.999);
}

const TIME_STEPS = [60, 120, 300, 3600, 7200, 10800, 21600].map(seconds => seconds * 1000);

export class Chart {
  // A series is { id, name, colour, dash }. `format` writes a value with its unit.
  constructor(figure, { title, about, series, stacked, format, axis }) {
    Object.assign(this, { figure, series, stacked, format, axis, line: null, at: null, hidden: new Set(), data: new Map() });
    this.canvas = el('canvas', {});
    this.moment = el('small', { className: 'moment' });
    this.plot = el('div', { className: 'plot', tabIndex: 0, role: 'slider' }, this.canvas);
    this.plot.setAttribute('aria-label', title + ': moment');
    this.legend = series.map(one => this.entry(one));
    figure.append(el('figcaption', {}, el('h3', {}, title, el('small', {}, about)), this.moment), this.plot,
      el('div', { className: 'legend', role: 'group', ariaLabel: title + ': shown series' }, ...this.legend.map(one => one.node)));
    this.plot.onpointermove = event => this.point(event.offsetX);
    this.plot.onpointerleave = () => this.read(null);
    this.plot.onblur = () => this.read(null);
    this.plot.onkeydown = event => this.key(event);
    new ResizeObserver(() => this.draw()).observe(this.plot);
  }

  entry(one) {
    const value = el('b', {});
    const node = el('button', { type: 'button', className: 'series', ariaPressed: 'true' },
      el('span', { className: 'swatch ' + (one.dash || 'area') + ' of-' + one.colour }), el('span', {}, one.name), value);
    node.onclick = () => {
      if (!this.hidden.delete(one.id)) this.hidden.add(one.id);
      node.ariaPressed = String(!this.hidden.has(one.id));
      this.draw();
    };
    return { node, value };
  }

  show(line) {
    if (line !== this.line) this.at = null;
    // The reading line stays at its moment while the numbers move.
    else if (this.at !== null) this.at = Math.max(0, this.at - (line.slot - this.slot));
    this.line = line;
    this.slot = line.slot;
    this.data = new Map(this.series.map(one => [one.id, line.read(one.id)]));
    // A young chart begins with the first number of all, and has at least a fifth of its steps.
    this.from = Math.max(0, Math.min(line.size * 0.8, line.first - line.slot + line.size - 1));
    // What only the history of the server tells is shown while there is some.
    this.series.forEach((one, index) => { this.legend[index].node.hidden = one.id === 'other' && !this.data.get('other')?.some(value => value > 0); });
    this.draw();
  }

  point(x) {
    if (!this.line) return;
    const share = (x - GUTTER.left) / (this.plot.clientWidth - GUTTER.left - GUTTER.right);
    this.read(share < 0 || share > 1 ? null : Math.round(this.from + share * (this.line.size - 1 - this.from)));
  }

  key(event) {
    if (!this.line) return;
    const last = this.line.size - 1, at = this.at ?? last, leap = Math.round(last / 10);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowDown: at - 1, ArrowUp: at + 1, PageDown: at - leap,
      PageUp: at + leap, Home: this.from, End: last, Escape: null }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.read(to === null ? null : Math.min(last, Math.max(this.from, to)));
  }

  read(at) {
    if (at === this.at) return;
    this.at = at;
    this.draw();
  }

  momentOf(index) { return (this.line.slot - this.line.size + 1 + index) * this.line.stepMs; }

  // The values at the reading line, or the last ones.
  tell() {
    const last = this.line.size - 1, at = this.at ?? last;
    const values = this.series.map(one => this.data.get(one.id)?.[at]);
    values.forEach((value, index) => setText(this.legend[index].value, value === undefined ? '–' : this.format(value)));
    const when = time(this.momentOf(at));
    setText(this.moment, this.at === null ? '' : when);
    const told = this.series.map((one, index) => one.name + ' ' + this.legend[index].value.textContent);
    for (const [name, value] of [['min', this.from], ['max', last], ['now', at], ['text', when + ': ' + told.join(', ')]]) {
      const attribute = 'aria-value' + name;
      if (this.plot.getAttribute(attribute) !== String(value)) this.plot.setAttribute(attribute, value);
    }
  }

  draw() {
    if (!this.line || document.hidden || this.figure.hidden) return;
    this.tell();
    const width = this.plot.clientWidth, height = this.plot.clientHeight;
    if (width < 80) return;
    const pen = fit(this.canvas, width, height);
    const box = { left: GUTTER.left, top: GUTTER.top, width: width - GUTTER.left - GUTTER.right, height: height - GUTTER.top - GUTTER.bottom };
    const shown = this.series.filter(one => !this.hidden.has(one.id) && this.data.get(one.id));
    const tops = this.stack(shown);
    let most = 0;
    for (const top of tops) for (const value of top) if (value > most) most = value;
    const step = niceStep(Math.max(most, this.axis.least) * 1.02, 4), top = Math.ceil(Math.max(most, this.axis.least) / step) * step;
    const x = index => box.left + (index - this.from) / (this.line.size - 1 - this.from) * box.width;
    const y = value => box.top + box.height - value / top * box.height;
    this.drawAxes(pen, box, { step, top, x, y });
    shown.map((one, index) => [one, index]).reverse().forEach(([one, index]) => {
      pen.strokeStyle = pen.fillStyle = colourOf(one.colour);
      if (this.stacked) area(pen, tops[index], index ? tops[index - 1] : null, x, y);
      else stroke(pen, tops[index], x, y, DASHES[one.dash]);
    });
    if (this.at !== null) {
      pen.fillStyle = colourOf('ink');
      pen.fillRect(Math.round(x(this.at)) - 0.5, box.top, 1, box.height);
    }
  }

  stack(shown) {
    const found = shown.map(one => this.data.get(one.id));
    if (!this.stacked) return found;
    for (let index = 1; index < found.length; index += 1) {
      const below = found[index - 1];
      found[index] = found[index].map((value, at) => Number.isNaN(below[at]) ? value : below[at] + (value || 0));
    }
    return found;
  }

  drawAxes(pen, box, { step, top, x, y }) {
    pen.font = '11px system-ui, sans-serif';
    pen.textBaseline = 'middle';
    pen.textAlign = 'right';
    for (let value = 0; value <= top * 1.001; value += step) {
      const at = Math.round(y(value)) + 0.5;
      pen.fillStyle = colourOf(value ? 'grid' : 'line');
      pen.fillRect(box.left, at - 0.5, box.width, 1);
      pen.fillStyle = colourOf('soft');
      pen.fillText(this.axis.write(value, step), box.left - 5, at);
    }
    pen.textBaseline = 'alphabetic';
    pen.textAlign = 'center';
    const { stepMs, size } = this.line, all = (size - this.from) * stepMs, most = Math.max(2, Math.floor(box.width / 60));
    const every = TIME_STEPS.find(one => all / one <= most) || TIME_STEPS.at(-1);
    const first = this.momentOf(this.from), zone = new Date(first).getTimezoneOffset() * 60000;
    for (let at = Math.ceil((first - zone) / every) * every + zone; at <= this.line.endMs; at += every) {
      const left = x(this.from + (at - first) / stepMs);
      pen.fillStyle = colourOf('line');
      pen.fillRect(Math.round(left), box.top + box.height, 1, 4);
      pen.fillStyle = colourOf('soft');
      if (left > box.left + 14 && left < box.left + box.width - 10) pen.fillText(minute(at), left, box.top + box.height + 15);
    }
  }
}

// Calls `use` with the first and last index of each stretch without gaps.
function stretches(values, use) {
  let from = -1;
  for (let index = 0; index <= values.length; index += 1) {
    const there = index < values.length && !Number.isNaN(values[index]);
    if (there && from < 0) from = index;
    if (!there && from >= 0) { use(from, index - 1); from = -1; }
  }
}

function area(pen, tops, below, x, y) {
  stretches(tops, (from, to) => {
    pen.beginPath();
    for (let index = from; index <= to; index += 1) pen.lineTo(x(index), y(tops[index]));
    for (let index = to; index >= from; index -= 1) pen.lineTo(x(index), y(below?.[index] || 0));
    pen.closePath();
    pen.fill();
    if (from === to) pen.fillRect(x(from) - 1, y(tops[from]), 2, y(below?.[from] || 0) - y(tops[from]));
  });
}

function stroke(pen, values, x, y, dash) {
  pen.lineWidth = 1.5;
  pen.lineJoin = 'round';
  pen.setLineDash(dash || []);
  stretches(values, (from, to) => {
    pen.beginPath();
    pen.moveTo(x(from) - (from === to ? 1 : 0), y(values[from]));
    for (let index = from; index <= to; index += 1) pen.lineTo(x(index), y(values[index]));
    pen.stroke();
  });
  pen.setLineDash([]);
}

const SPARK = { width: 96, height: 20, steps: 120 };

// All of something as a line, and the bad part of it as an area.
export function drawSpark(cell, line, whole, part, words) {
  let canvas = cell.firstChild;
  if (!canvas) cell.append(canvas = el('canvas', { className: 'spark', role: 'img' }));
  const all = line.read(whole, SPARK.steps), bad = line.read(part, SPARK.steps);
  if (canvas.ariaLabel !== words) canvas.ariaLabel = words;
  const pen = fit(canvas, SPARK.width, SPARK.height);
  if (!all) return;
  let top = 1;
  for (const value of all) if (value > top) top = value;
  const x = index => 1 + index / (SPARK.steps - 1) * (SPARK.width - 2);
  const y = value => SPARK.height - 1 - value / top * (SPARK.height - 3);
  pen.fillStyle = colourOf('reject');
  if (bad) area(pen, bad, null, x, y);
  pen.strokeStyle = colourOf('soft');
  stroke(pen, all, x, y);
}
