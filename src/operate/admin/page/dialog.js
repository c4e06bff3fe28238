// Questions before a change, and the sentence after it.

import { $, el, setText } from './dom.js';

let noticeTimer;
// It stands where the state of the process stands otherwise, so that it covers nothing.
export function notice(text) {
  setText($('notice'), text);
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => setText($('notice'), ''), 8000);
}

// Asks in a dialog that says what will happen, and calls `act` with the values. While `act` fails, the dialog stays open
// with its sentence. Resolves to whether it was done. One dialog at a time.
let turn = Promise.resolve();
export const ask = (...question) => turn = turn.then(() => openDialog(...question));

function openDialog(title, effect, fields, confirm, act) {
  setText($('asked'), title);
  $('effect').replaceChildren(...[].concat(effect).map(text => el('p', {}, text)));
  const inputs = fields.map(({ label, ...field }) => el('input', { value: '', autocomplete: 'off', spellcheck: false, ...field }));
  const told = fields.map((field, index) => el('span', { className: 'bad', id: 'told-' + index, role: 'alert' }));
  $('fields').replaceChildren(...inputs.map((input, index) =>
    el('div', {}, el('label', {}, fields[index].label, input), told[index])));
  setText($('confirm'), confirm);
  const dialog = $('dialog'), opener = document.activeElement.dataset.focus;
  let done = false, busy = false;
  tell('', fields, inputs, told);
  $('question').onsubmit = async event => {
    event.preventDefault();
    if (busy) return;
    const empty = inputs.findIndex(input => input.required && !input.value.trim());
    if (empty >= 0) return tell('`' + inputs[empty].name + '`: Please fill this in.', fields, inputs, told);
    busy = true;
    try {
      await act(Object.fromEntries(inputs.map(input => [input.name, input.value.trim()])));
      done = true;
      dialog.close();
    } catch (error) {
      tell(error instanceof TypeError ? 'The gateway does not answer.' : error.message, fields, inputs, told);
    } finally { busy = false; }
  };
  dialog.showModal();
  (inputs[0] || $('confirm')).focus();
  return new Promise(resolve => {
    dialog.onclose = () => {
      // The list may have been drawn again, and the browser gives the focus back to a node that is gone.
      const again = opener && [...document.querySelectorAll('[data-focus]')].find(node => node.dataset.focus === opener);
      if (again) again.focus({ preventScroll: true });
      resolve(done);
    };
  });
}

// Puts the sentence of the gateway under the field that it is about, in words of the page.
function tell(text, fields, inputs, told) {
  // What a program would post helps no person.
  let sentence = text.split('; post e.g. ')[0].trim();
  const find = (...tests) => tests.reduce((at, test) => at >= 0 ? at : inputs.findIndex(test), -1);
  const at = find(input => sentence.startsWith('`' + input.name + '`: '), input => sentence.includes('`' + input.name + '`'),
    input => sentence.includes('`' + input.value.trim() + '`'), input => input.value.length > 2 && sentence.includes(input.value.trim()));
  if (at >= 0) sentence = sentence.replace('`' + inputs[at].name + '`: ', '');
  for (const field of fields) sentence = sentence.replaceAll('`' + field.name + '`', '`' + field.label.split(/[,;]/)[0] + '`');
  sentence = sentence.replace(/`([^`]*)`/g, '“$1”');
  sentence = sentence && sentence[0].toUpperCase() + sentence.slice(1) + (/[.!?…]$/.test(sentence) ? '' : '.');
  inputs.forEach((input, index) => {
    setText(told[index], index === at ? sentence : '');
    if (index === at) {
      input.setAttribute('aria-invalid', 'true');
      input.setAttribute('aria-describedby', told[index].id);
      input.focus();
    } else input.removeAttribute('aria-invalid');
  });
  setText($('refusal'), at < 0 ? sentence : '');
  $('refusal').hidden = at >= 0 || !sentence;
}

// Not a submit button, as which Enter in a field would press it.
$('cancel').onclick = () => $('dialog').close();
