// The calls of the admin API, with the token where they need one.

import { $ } from './dom.js';
import { ask } from './dialog.js';

let token = sessionStorage.getItem('token') || '';
let asking = null, declined = false;

// A header takes bytes: a token is sent as UTF-8.
const bearer = text => 'Bearer ' + String.fromCharCode(...new TextEncoder().encode(text));

function fetchWith(sent, method, path, { body, accept, signal } = {}) {
  const headers = { Accept: accept || 'application/json' };
  if (sent) headers.Authorization = bearer(sent);
  if (method !== 'GET') headers['Content-Type'] = 'application/json';
  return fetch(path, { method, headers, cache: 'no-store', body: body && JSON.stringify(body), signal });
}

function askToken(why) {
  const check = async values => {
    const answer = await fetchWith(values.token, 'GET', '/status');
    if (answer.status === 401) throw new Error('`token`: The gateway does not accept this token.');
    sessionStorage.setItem('token', token = values.token);
  };
  asking ||= ask('Admin token', why, [{ name: 'token', type: 'password', label: 'Token', required: true }], 'Continue', check)
    .then(given => {
      asking = null;
      declined = !given;
      $('token').hidden = given;
      return given;
    });
  return asking;
}

export function enterToken() {
  declined = false;
  $('token').hidden = true;
}

export async function send(method, path, options) {
  const sent = token;
  const answer = await fetchWith(sent, method, path, options);
  if (answer.status !== 401) return answer;
  const why = sent ? 'The gateway does not accept this token.' : 'This gateway requires an admin token.';
  const retry = sent !== token || !declined && await askToken(why);
  if (!retry) throw new Refused('the gateway requires an admin token');
  return send(method, path, options);
}

// An answer of the gateway that says no, as opposed to no answer.
export class Refused extends Error {}

async function reason(answer) {
  const text = await answer.text();
  try { return JSON.parse(text).error || text; } catch { return text.trim() || 'status ' + answer.status; }
}

export async function read(path) {
  const answer = await send('GET', path);
  if (!answer.ok) throw Object.assign(new Refused(await reason(answer)), { status: answer.status });
  return answer.json();
}

// Makes a change; the error has the sentence of the gateway.
export async function change(method, path, body) {
  const answer = await send(method, path, { body: body.reason === '' ? { ...body, reason: undefined } : body });
  if (!answer.ok) throw new Refused(await reason(answer));
  return answer.json();
}

// A gateway that stands still says nothing, and its connection stays.
const SILENCE_MS = 6000;

// EventSource cannot send a token, so the stream is read by hand.
export async function listen(onEvent, onEnd) {
  for (let pause = 500; ; pause = Math.min(pause * 2, 10000)) {
    const silence = new AbortController();
    let timer;
    const watch = () => {
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(new Error('it sends nothing')), SILENCE_MS);
    };
    try {
      const answer = await send('GET', '/events', { accept: 'text/event-stream', signal: silence.signal });
      if (!answer.ok) throw new Refused(await reason(answer));
      watch();
      pause = 250;
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = '';
      for (;;) {
        const { value, done } = await reader.read();
        if (done) throw new Error('it ended the connection');
        watch();
        const events = (rest + value).split('\n\n');
        rest = events.pop();
        for (const event of events) {
          const data = event.split('\n').filter(line => line.startsWith('data:')).map(line => line.slice(5)).join('\n');
          if (data) onEvent(JSON.parse(data));
        }
      }
    } catch (error) {
      onEnd(error instanceof Refused ? error.message : error instanceof TypeError ? 'it does not answer' : error.message);
    }
    clearTimeout(timer);
    await new Promise(done => setTimeout(done, pause));
  }
}
