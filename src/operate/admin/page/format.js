// Numbers, spans and moments as people read them.

export const number = value => {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  if (value >= 1e6) return (value / 1e6).toFixed(2) + ' M';
  if (Number.isInteger(value) || value >= 100) return Math.round(value).toLocaleString('en');
  return value >= 10 ? value.toFixed(1) : String(Math.round(value * 100) / 100);
};

export const sum = rates => Object.values(rates).reduce((all, rate) => all + rate, 0);

export const perSecond = value => number(value) + (value >= 0 ? '/s' : '');

export const milliseconds = value => value === null || value === undefined || Number.isNaN(value) ? '–'
  : value >= 10000 ? number(value / 1000) + ' s' : number(value >= 100 ? Math.round(value) : value) + ' ms';

export function span(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  const whole = Math.round(seconds);
  if (whole < 60) return (seconds < 10 ? number(seconds) : whole) + ' s';
  if (whole < 3600) return Math.floor(whole / 60) + ' min ' + whole % 60 + ' s';
  if (whole < 172800) return Math.floor(whole / 3600) + ' h ' + Math.floor(whole % 3600 / 60) + ' min';
  return Math.floor(whole / 86400) + ' days';
}

export const time = ms => new Date(ms).toLocaleTimeString('en-GB');
export const minute = ms => time(ms).slice(0, 5);
export const count = (many, one, more = one + 's') => number(many) + ' ' + (many === 1 ? one : more);

export function percent(part, whole) {
  const share = whole > 0 ? part / whole * 100 : 0;
  return (share > 0 && share < 1 ? '< 1' : share >= 99.5 && part < whole ? '> 99' : Math.round(share)) + ' %';
}

// The most useful words of a sum over names: "per-ip", or "per-ip and 2 others".
export function mostly(pairs) {
  const some = pairs.filter(([, value]) => value > 0).sort((a, b) => b[1] - a[1]);
  if (!some.length) return '';
  return some[0][0] + (some.length > 1 ? ' and ' + count(some.length - 1, 'other') : '');
}
