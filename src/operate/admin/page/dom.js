// Elements. Every value of the server becomes text, never HTML: clients choose keys.

export const $ = id => document.getElementById(id);

export function el(tag, props, ...children) {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...children.filter(child => child !== null && child !== undefined));
  return node;
}

// Touches the node only if its text changes, so that a selection in it stays and nothing is painted.
export function setText(node, text) {
  const only = node.firstChild;
  if (only && only === node.lastChild && only.nodeType === Node.TEXT_NODE) {
    if (only.data !== text) only.data = text;
  } else if (node.textContent !== text || only) {
    node.textContent = text;
  }
}

export function setClass(node, name) {
  if (node.className !== name) node.className = name;
}

export function button(text, name, act, className) {
  const node = el('button', { type: 'button', className: className || '', onclick: act }, text);
  if (name) node.dataset.focus = name;
  return node;
}

// Makes the children of `place` one per item, by key, and keeps those that are there.
export function keep(place, items, keyOf, make, update) {
  const known = new Map([...place.children].map(node => [node.dataset.key, node]));
  let at = place.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let node = known.get(key);
    known.delete(key);
    if (!node) {
      node = make(item);
      node.dataset.key = key;
    }
    update(node, item);
    if (node === at) at = at.nextElementSibling;
    else place.insertBefore(node, at);
  }
  for (const node of known.values()) node.remove();
}

// Options of a choice; the chosen one stays chosen.
export function setOptions(select, names, first) {
  const wanted = (first === undefined ? [] : ['']).concat(names);
  if (wanted.join('\n') === [...select.options].map(option => option.value).join('\n')) return false;
  const before = select.value;
  select.replaceChildren(...wanted.map(name => el('option', { value: name }, name || first || '')));
  if (wanted.includes(before)) select.value = before;
  return true;
}

// The rights of the caller; `GET /status` tells them.
export const caller = { name: '', mayChange: true };

// Shows on every button that changes something whether the caller may.
export function guard(node) {
  const refused = !caller.mayChange;
  if (node.disabled !== refused) {
    node.disabled = refused;
    node.title = refused ? 'The token ' + caller.name + ' may only read.' : '';
  }
}

let pressed = false, moved = -1e9;
addEventListener('pointerdown', () => { pressed = true; });
for (const end of ['pointerup', 'pointercancel']) addEventListener(end, () => { pressed = false; });
addEventListener('pointermove', () => { moved = performance.now(); }, { passive: true });

// Rows keep their order while someone points at them, works in them by keyboard, or marks text.
export function isInUse(place) {
  const selection = getSelection();
  return pressed || place.contains(document.activeElement) || !selection.isCollapsed && place.contains(selection.anchorNode)
    || performance.now() - moved < 4000 && place.matches(':hover');
}
