// Words, colours, numbers and times as the page shows them.
'use strict';

// Okabe and Ito's colours, which people with any colour vision can tell apart. A state also has a
// shape and a word.
const STATES = {
  success: ['#009E73', '●', 'done'], running: ['#0072B2', '▶', 'running'],
  suspended: ['#F0E442', '‖', 'suspended'], requeued: ['#56B4E9', '↺', 'requeued'],
  waiting: ['#56B4E9', '○', 'waiting'], held: ['#CC79A7', '◫', 'held'],
  failed: ['#D55E00', '✕', 'failed'], cancelled: ['#8a8a8a', '⊘', 'cancelled'],
  ready: ['#009E73', '▶', 'ready'], starting: ['#0072B2', '◔', 'starting'],
  draining: ['#E69F00', '▽', 'draining'], ended: ['#8a8a8a', '■', 'ended'],
  used: ['#009E73', '●', 'used by jobs'], unused: ['#E69F00', '○', 'unused'],
  lost: ['#E69F00', '?', 'lost'], active: ['#0072B2', '▶', 'unfinished'],
};
// A property of the map itself: names from a run may be those of JavaScript, such as __proto__.
const own = (map, name) => Object.hasOwn(map, name) ? map[name] : undefined;
const stateOf = (name) => own(STATES, name) || ['#8a8a8a', '◇', name];
const SERIES = ['#0072B2', '#D55E00', '#009E73', '#CC79A7', '#E69F00', '#56B4E9', '#000000'];
const TIMES = new Set(['submitted', 'started', 'finished']);

const isThere = (value) => value !== null && value !== undefined;
const sum = (values) => values.reduce((all, each) => all + each, 0);

function number(value) {
  if (typeof value !== 'number') return String(value);
  if (Number.isInteger(value)) return value.toLocaleString('en');
  const size = Math.abs(value);
  return size && (size < 1e-3 || size >= 1e6) ? value.toExponential(3)
    : String(+value.toPrecision(5));
}
function duration(seconds) {
  if (!isThere(seconds)) return '–';
  if (seconds <= 0) return '0 s';
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${+seconds.toFixed(1)} s`;
  const parts = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const first = parts.findIndex(([size]) => seconds >= size);
  const [size, unit] = parts[first];
  const whole = Math.floor(seconds / size);
  const rest = Math.floor((seconds - whole * size) / parts[first + 1][0]);
  return rest ? `${whole} ${unit} ${rest} ${parts[first + 1][1]}` : `${whole} ${unit}`;
}
const time = (seconds) => !isThere(seconds) ? ''
  : new Date(seconds * 1000).toISOString().replace('T', ' ').slice(0, 19);
const cell = (name, value) => !isThere(value) ? '' : TIMES.has(name) ? time(value)
  : name === 'duration' ? duration(value)
    // As it is filtered: without separators.
    : Number.isInteger(value) ? String(value) : number(value);
const percent = (share) => share > 0 && share < 0.01 ? `${+(100 * share).toPrecision(1)} %`
  : `${Math.round(100 * share)} %`;
const short = (text, most) => text.length > most ? `${text.slice(0, most - 1)}…` : text;
// Jobs write codes for colours and other orders to a terminal; none of these is text.
const CODES = /\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]/g;
const clean = (text) => text.replace(CODES, '');
const plural = (count, word) => `${number(count)} ${word}${count === 1 ? '' : 's'}`;
// A word of a command, as a shell reads it.
const quoted = (word) => /^[\w@%+=:,./-]+$/.test(word) ? word
  : `'${word.replaceAll("'", `'"'"'`)}'`;
const shown = (value) => typeof value === 'string' ? value : JSON.stringify(value);
