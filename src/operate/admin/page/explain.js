// Asks what the gateway would do with a request.

import { send } from './api.js';
import { $ } from './dom.js';

$('explain').onsubmit = async event => {
  event.preventDefault();
  const form = new FormData(event.target), header = form.get('header').trim();
  const body = { method: form.get('method').trim(), url: form.get('url').trim(), ip: form.get('ip').trim(), headers: header ? [header] : [] };
  try {
    const answer = await send('POST', '/explain', { body, accept: 'text/plain' });
    $('answer').textContent = await answer.text();
  } catch (error) { $('answer').textContent = error instanceof TypeError ? 'The gateway does not answer.' : error.message; }
};
