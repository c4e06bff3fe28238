// Clients that are banned.

import { banClient, drawActions, unban } from './actions.js';
import { Refused, read } from './api.js';
import { $, guard, setText } from './dom.js';
import { count, span } from './format.js';
import { onSearch } from './limits.js';
import { Table } from './table.js';

const bans = new Table($('bans'), {
  label: 'bans', key: row => row.banned, empty: 'Nobody is banned.', sort: 'left',
  columns: [
    { title: 'banned', kind: 'key', cell: row => row.banned, value: row => row.banned },
    { title: 'by', kind: 'text', cell: row => row.by, value: row => row.by },
    { title: 'reason', kind: 'text', cell: row => row.reason, value: row => row.reason },
    { title: 'left', kind: 'number', cell: row => span(row.left_s), value: row => row.left_s },
    { title: '', kind: 'actions', draw: (cell, row) => drawActions(cell, row, [['Unban…', 'unban ' + row.banned, row => unban(row.banned)]]) },
  ],
});

export async function refreshBans() {
  guard($('ban'));
  try {
    const found = await read('/bans');
    bans.show(found.bans);
    setText($('bans-count'), found.unnamed ? 'and ' + count(found.unnamed, 'client') + ' whose names are unknown here' : '');
  } catch (error) { if (error instanceof Refused) bans.fail(error.message); }
}

onSearch(hit => bans.filter(hit && (row => hit(row.banned, row.by, row.reason))));
$('ban').onclick = () => banClient('');
