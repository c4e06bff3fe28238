// Follows the gateway: its events each second, and the rest every two seconds.

import { afterChange } from './actions.js';
import { enterToken, listen } from './api.js';
import { refreshBans } from './bans.js';
import { $, setClass, setText } from './dom.js';
import './explain.js';
import { time } from './format.js';
import { refreshStatus } from './gateway.js';
import { refreshLimits, showKeys } from './limits.js';
import { chosenRange, draw, goStale, loadHistory, showEvent } from './overview.js';
import { recordRefusals } from './refusals.js';
import { refreshServers, showRates } from './servers.js';

let live = false, generation = 0;

function onEvent(event) {
  if (!live) {
    live = true;
    setClass($('live'), 'on');
    setText($('live'), 'live');
    setClass(document.body, '');
    loadHistory('10m');
    refresh();
  }
  recordRefusals(event);
  showEvent(event);
  showRates(event);
}

function onEnd(why) {
  live = false;
  const since = goStale(why);
  setClass($('live'), 'off');
  setText($('live'), 'not live since ' + time(since));
  setClass(document.body, 'stale');
}

async function refresh() {
  const status = await refreshStatus();
  // After a reload limits may have other names.
  if (status && generation && status.generation !== generation) loadHistory('10m');
  generation = status?.generation || generation;
  await Promise.all([refreshLimits().then(showKeys), refreshServers(), refreshBans()]);
}

afterChange(refresh);
$('token').onclick = () => {
  enterToken();
  refresh();
};
listen(onEvent, onEnd);
refresh();
setInterval(() => { if (!document.hidden) refresh(); }, 2000);
setInterval(() => { if (!document.hidden && chosenRange() === '1d') loadHistory('1d'); }, 60000);
document.addEventListener('visibilitychange', () => { if (!document.hidden) draw(); });
