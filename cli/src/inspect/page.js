'use strict';
(() => {
  const $ = (id) => document.getElementById(id);
  const about = JSON.parse($('about').textContent);
  const rank = about.grid.length;
  const [NOT_READ, , , WAITING, TORN, DAMAGED] = [0, 1, 2, 3, 4, 5];
  const STATE_COLOURS = ['not-read', 'whole', 'loose', 'waiting', 'torn', 'damaged'];
  const KINDS = ['unused', 'live', 'index', 'record'];

  // ---- What was packed

  const bytesOf = (id) => {
    const element = $(id);
    const text = element.textContent;
    element.textContent = '';
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const binary = atob(text);
    const bytes = new Uint8Array(binary.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
    return bytes;
  };

  /** Numbers in groups of seven bits, the lowest first. */
  class Reader {
    constructor(bytes, at = 0) {
      this.bytes = bytes;
      this.at = at;
    }

    next() {
      let number = 0;
      let unit = 1;
      for (;;) {
        const byte = this.bytes[this.at++];
        number += (byte & 0x7f) * unit;
        if (byte < 0x80) return number;
        unit *= 128;
      }
    }
  }

  // Stored shards, by number in C order.
  const packedSizes = new Reader(bytesOf('sizes'));
  const count = packedSizes.next();
  const numbers = new Float64Array(count);
  const sizes = new Float64Array(count);
  for (let i = 0, next = 0; i < count; i++) {
    numbers[i] = next + packedSizes.next();
    sizes[i] = packedSizes.next();
    next = numbers[i] + 1;
  }

  const volume = about.grid.reduce((a, b) => a * b, 1);
  const DENSE = 1 << 24;
  const dense = volume <= DENSE ? new Int32Array(volume).fill(-1) : null;
  const sparse = new Map();
  for (let i = 0; i < count; i++) {
    if (dense) dense[numbers[i]] = i;
    else sparse.set(numbers[i], i);
  }
  const entryOf = (number) => (dense ? dense[number] : sparse.get(number) ?? -1);

  // Shards whose index was read: where each is described.
  const looks = bytesOf('looks');
  const lookAt = new Map();
  const states = new Uint8Array(count);
  const reader = new Reader(looks);
  for (let left = reader.next(), next = 0; left > 0; left--) {
    const number = next + reader.next();
    const length = reader.next();
    lookAt.set(number, reader.at);
    const entry = entryOf(number);
    if (entry >= 0) states[entry] = looks[reader.at];
    reader.at += length;
    next = number + 1;
  }
  const framed = new Set(about.framed);
  for (const number of framed) {
    const entry = entryOf(number);
    if (entry >= 0 && states[entry] < WAITING) states[entry] = WAITING;
  }

  const lookOf = (number) => {
    if (!lookAt.has(number)) return null;
    const from = new Reader(looks, lookAt.get(number));
    const look = { state: from.next(), live: from.next(), stored: from.next() };
    const length = from.next();
    look.problem = new TextDecoder().decode(looks.subarray(from.at, from.at + length));
    from.at += length;
    const list = (read) => Array.from({ length: from.next() }, read);
    look.strip = list(() => {
      const run = from.next();
      return { kind: run % 4, length: Math.floor(run / 4) };
    });
    look.subchunks = list(() => from.next());
    return look;
  };

  // ---- Numbers as text

  const UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  const digits = (value) => {
    if (value === 0 || value >= 100) return Math.round(value).toLocaleString('en');
    return value.toLocaleString('en', { maximumFractionDigits: value >= 10 ? 1 : 2 });
  };
  const bytesText = (value) => {
    let unit = 0;
    while (value >= 1024 && unit + 1 < UNITS.length) {
      value /= 1024;
      unit++;
    }
    return `${digits(value)} ${UNITS[unit]}`;
  };
  const countText = (value) => value.toLocaleString('en');
  const plural = (value, noun) => `${countText(value)} ${noun}${value === 1 ? '' : 's'}`;
  const percent = (part, whole) => `${whole ? digits((100 * part) / whole) : 0} %`;
  const times = (list) => (list.length ? list.map(countText).join(' × ') : 'no axes');
  const escape = (text) =>
    String(text).replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]);

  // ---- Geometry

  const strides = new Array(rank).fill(1);
  for (let axis = rank - 2; axis >= 0; axis--) strides[axis] = strides[axis + 1] * about.grid[axis + 1];
  const indicesOf = (number) => strides.map((stride, axis) => Math.floor(number / stride) % about.grid[axis]);

  /** The bytes of a shard's elements that are in the array, decoded. */
  const decodedAt = (number) => {
    let bytes = about.element;
    for (let axis = 0; axis < rank; axis++) {
      const index = Math.floor(number / strides[axis]) % about.grid[axis];
      bytes *= Math.min(about.shard[axis], about.shape[axis] - index * about.shard[axis]);
    }
    return bytes;
  };
  const ratios = new Float64Array(count);
  let decodedBytes = 0;
  let storedBytes = 0;
  for (let i = 0; i < count; i++) {
    storedBytes += sizes[i];
    if (about.element === null) continue;
    const decoded = decodedAt(numbers[i]);
    decodedBytes += decoded;
    ratios[i] = sizes[i] ? decoded / sizes[i] : 0;
  }

  // ---- Colours

  const dark = matchMedia('(prefers-color-scheme: dark)');
  const RAMPS = {
    light: ['#cfe8dc', '#8fcfc2', '#4ba7b4', '#2a78a4', '#234c85', '#171f4d'],
    dark: ['#20405f', '#22688a', '#2a959b', '#5dbf93', '#b0df85', '#f4f3a0'],
  };
  let style;
  let ramp;
  const css = (name) => style.getPropertyValue(`--${name}`).trim();
  const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
  const packed = ([r, g, b]) => ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
  const hexOf = (colour) => `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
  const readTheme = () => {
    style = getComputedStyle(document.documentElement);
    const stops = RAMPS[dark.matches ? 'dark' : 'light'].map(rgb);
    ramp = Uint32Array.from({ length: 256 }, (_, i) => {
      const at = (i / 255) * (stops.length - 1);
      const low = Math.min(Math.floor(at), stops.length - 2);
      return packed(stops[low].map((a, k) => Math.round(a + (stops[low + 1][k] - a) * (at - low))));
    });
  };

  /** A scale of values, from the least to the greatest; logarithmic if they differ a lot. */
  const scaleOf = (values) => {
    let min = Infinity;
    let max = -Infinity;
    for (const value of values) {
      if (value < min) min = value;
      if (value > max) max = value;
    }
    if (min > max) return null;
    const log = max / Math.max(min, 1) > 30;
    const to = log ? (value) => Math.log(Math.max(value, 1)) : (value) => value;
    const from = log ? Math.exp : (value) => value;
    const [low, high] = [to(min), to(max)];
    return {
      min,
      max,
      log,
      place: (value) => (high > low ? (to(value) - low) / (high - low) : 0.6),
      value: (place) => from(low + (high - low) * place),
    };
  };

  const METRICS = {
    size: { name: 'Size', values: sizes, text: bytesText },
    ratio: { name: 'Ratio', values: ratios, text: (value) => `${digits(value)} : 1` },
    state: { name: 'State' },
  };
  for (const metric of Object.values(METRICS)) metric.scale = metric.values && scaleOf(metric.values);

  // ---- What is shown

  const view = { metric: 'size', row: 0, column: 0, at: about.grid.map(() => 0), selected: null };
  // The two axes with the most shards, in their order.
  const byCount = about.grid.map((_, axis) => axis).sort((a, b) => about.grid[b] - about.grid[a] || b - a);
  [view.row, view.column] = byCount.slice(0, 2).sort((a, b) => a - b);

  /** Rows and columns of cells, and which shard each is. */
  let plane;
  const FOLD = 64;
  const makePlane = () => {
    const base = view.at.reduce(
      (sum, at, axis) => (axis === view.row || axis === view.column ? sum : sum + at * strides[axis]),
      0,
    );
    const axes = rank === 1 ? [view.row] : [view.row, view.column].filter((axis) => axis !== undefined);
    const long = axes.filter((axis) => about.grid[axis] > 1);
    if (long.length === 1 && about.grid[long[0]] > FOLD) {
      // One axis, folded like lines of text.
      const axis = long[0];
      const n = about.grid[axis];
      const columns = Math.ceil(Math.sqrt(n * 1.6));
      const number = (r, c) => (r * columns + c < n ? base + (r * columns + c) * strides[axis] : -1);
      plane = { rows: Math.ceil(n / columns), columns, number, folded: axis };
      return;
    }
    if (rank <= 1) {
      plane = { rows: 1, columns: rank ? about.grid[0] : 1, number: (_, c) => c, columnAxis: rank ? 0 : undefined };
      return;
    }
    plane = {
      rows: about.grid[view.row],
      columns: about.grid[view.column],
      number: (r, c) => base + r * strides[view.row] + c * strides[view.column],
      rowAxis: view.row,
      columnAxis: view.column,
    };
  };

  /** The cell of a shard; `null` if it is not in the plane. */
  const cellOf = (number) => {
    const indices = indicesOf(number);
    const others = indices.every((at, axis) =>
      axis === view.row || axis === view.column || plane.folded === axis || at === view.at[axis]);
    if (!others) return null;
    if (plane.folded !== undefined) {
      const at = indices[plane.folded];
      return [Math.floor(at / plane.columns), at % plane.columns];
    }
    return rank <= 1 ? [0, indices[0] ?? 0] : [indices[view.row], indices[view.column]];
  };

  // ---- The map

  const map = $('map');
  const stage = $('stage');
  const context = map.getContext('2d');
  const MARGIN = { left: 52, top: 40 };
  /** The most pixels of a cell. */
  const MOST = 128;
  let area = { width: 1, height: 1 };
  let fit = { x: 1, y: 1 };
  let scale = { x: 1, y: 1 };
  let origin = { x: 0, y: 0 };
  let colours = new Uint32Array(0);

  const colourAll = () => {
    const { values, scale: of } = METRICS[view.metric];
    colours = new Uint32Array(count);
    const named = STATE_COLOURS.map((name) => packed(rgb(css(name))));
    for (let i = 0; i < count; i++) {
      colours[i] = values ? ramp[Math.round(255 * of.place(values[i]))] : named[states[i]];
    }
  };

  const makeFit = () => {
    const { width, height } = area;
    const cell = Math.min(width / plane.columns, height / plane.rows, MOST);
    fit = { x: Math.min(width / plane.columns, cell * 8, MOST), y: Math.min(height / plane.rows, cell * 8, MOST) };
  };

  const clamp = () => {
    const limit = (at, size, room) => (size <= room ? (room - size) / 2 : Math.min(0, Math.max(room - size, at)));
    // What fits begins at the top left corner.
    const place = (at, size, room) => (size <= room ? 0 : limit(at, size, room));
    origin.x = place(origin.x, plane.columns * scale.x, area.width);
    origin.y = place(origin.y, plane.rows * scale.y, area.height);
  };

  const showAll = () => {
    scale = { ...fit };
    origin = { x: 0, y: 0 };
    clamp();
    draw();
  };

  const zoom = (factor, x, y) => {
    const most = Math.max(MOST, fit.x, fit.y);
    const wanted = Math.min(Math.max(factor, fit.x / scale.x), most / Math.max(scale.x, scale.y));
    origin.x = x - (x - origin.x) * wanted;
    origin.y = y - (y - origin.y) * wanted;
    scale = { x: scale.x * wanted, y: scale.y * wanted };
    clamp();
    draw();
  };

  let asked = false;
  const draw = () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      paint();
    });
  };

  /** The colour of a shard, packed; `null` without one. */
  const colourOf = (number, absent, waiting) => {
    if (number < 0) return null;
    const entry = entryOf(number);
    if (entry >= 0) return colours[entry];
    return view.metric === 'state' && framed.has(number) ? waiting : absent;
  };

  const paint = () => {
    const ratio = devicePixelRatio || 1;
    const width = Math.max(1, Math.round(area.width * ratio));
    const height = Math.max(1, Math.round(area.height * ratio));
    const whole = [stage.clientWidth, stage.clientHeight].map((n) => Math.max(1, Math.round(n * ratio)));
    if (map.width !== whole[0] || map.height !== whole[1]) [map.width, map.height] = whole;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, map.width, map.height);
    const image = context.createImageData(width, height);
    const pixels = new Uint32Array(image.data.buffer);
    const [absent, waiting] = [packed(rgb(css('absent'))), packed(rgb(css('waiting')))];
    const cell = { x: scale.x * ratio, y: scale.y * ratio };
    const gap = Math.min(cell.x, cell.y) >= 7 * ratio ? Math.max(1, Math.round(ratio)) : 0;
    const [ox, oy] = [origin.x * ratio, origin.y * ratio];
    /** The cells that a pixel shows, and whether it is in the gap behind one. */
    const spans = (length, offset, size, cells) => {
      const first = new Int32Array(length).fill(-1);
      const last = new Int32Array(length).fill(-1);
      if (size >= 1) {
        // A cell begins and ends at whole pixels.
        for (let cell = Math.max(0, Math.floor(-offset / size)); cell < cells; cell++) {
          const start = Math.round(offset + cell * size);
          if (start >= length) break;
          const end = Math.round(offset + (cell + 1) * size) - gap;
          first.fill(cell, Math.max(0, start), Math.max(0, end));
          last.fill(cell, Math.max(0, start), Math.max(0, end));
        }
        return [first, last];
      }
      for (let at = 0; at < length; at++) {
        const from = Math.floor((at - offset) / size + 1e-9);
        if (from < 0 || from >= cells) continue;
        first[at] = from;
        last[at] = Math.min(cells - 1, Math.max(from, Math.ceil((at + 1 - offset) / size - 1e-9) - 1));
      }
      return [first, last];
    };
    const [c0, c1] = spans(width, ox, cell.x, plane.columns);
    const [r0, r1] = spans(height, oy, cell.y, plane.rows);
    const values = view.metric === 'state' ? states : METRICS[view.metric].values;
    const pick = (y, x) => {
      let best = -1;
      let outside = true;
      let waits = false;
      for (let r = r0[y]; r <= r1[y]; r++) {
        for (let c = c0[x]; c <= c1[x]; c++) {
          const number = plane.number(r, c);
          if (number < 0) continue;
          outside = false;
          const entry = entryOf(number);
          if (entry >= 0 && (best < 0 || values[entry] > values[best])) best = entry;
          if (entry < 0 && framed.size && framed.has(number)) waits = true;
        }
      }
      if (outside) return 0;
      if (best >= 0) return colours[best];
      return waits && view.metric === 'state' ? waiting : absent;
    };
    for (let y = 0; y < height; y++) {
      if (r0[y] < 0) continue;
      if (y > 0 && r0[y] === r0[y - 1] && r1[y] === r1[y - 1]) {
        pixels.copyWithin(y * width, (y - 1) * width, y * width);
        continue;
      }
      for (let x = 0; x < width; x++) {
        if (c0[x] < 0) continue;
        const same = x > 0 && c0[x] === c0[x - 1] && c1[x] === c1[x - 1];
        pixels[y * width + x] = same ? pixels[y * width + x - 1] : pick(y, x);
      }
    }
    context.putImageData(image, Math.round(MARGIN.left * ratio), Math.round(MARGIN.top * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    paintMarks(gap / ratio);
    paintAxes();
    performance.mark('map painted');
  };

  const paintMarks = (gap) => {
    context.save();
    context.beginPath();
    context.rect(MARGIN.left - 3, MARGIN.top - 3, area.width + 6, area.height + 6);
    context.clip();
    const box = ([r, c]) => [
      MARGIN.left + origin.x + c * scale.x,
      MARGIN.top + origin.y + r * scale.y,
      Math.max(scale.x - gap, 1),
      Math.max(scale.y - gap, 1),
    ];
    if (view.metric !== 'state' && Math.min(scale.x, scale.y) >= 9) {
      // A corner says that something is wrong, whatever the colours show.
      for (let i = 0; i < count; i++) {
        if (states[i] < TORN) continue;
        const cell = cellOf(numbers[i]);
        if (!cell) continue;
        const [x, y, w, h] = box(cell);
        const size = Math.min(14, 0.5 * Math.min(w, h));
        context.fillStyle = css(STATE_COLOURS[states[i]]);
        context.beginPath();
        context.moveTo(x + w - size, y);
        context.lineTo(x + w, y);
        context.lineTo(x + w, y + size);
        context.fill();
      }
    }
    const cell = view.selected === null ? null : cellOf(view.selected);
    if (cell) {
      let [x, y, w, h] = box(cell);
      const [cx, cy] = [x + w / 2, y + h / 2];
      [w, h] = [Math.max(w, 9), Math.max(h, 9)];
      [x, y] = [cx - w / 2, cy - h / 2];
      context.lineWidth = 4;
      context.strokeStyle = css('card');
      context.strokeRect(x, y, w, h);
      context.lineWidth = 2;
      context.strokeStyle = css('accent');
      context.strokeRect(x, y, w, h);
    }
    context.restore();
  };

  const font = (size, weight = 400) =>
    `${weight} ${size}px system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial, sans-serif`;

  /** A step of 1, 2 or 5 times a power of 10, of at least this many cells. */
  const stepOf = (least) => {
    const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
    return [1, 2, 5, 10].map((k) => k * power).find((step) => step >= least);
  };

  const paintAxes = () => {
    context.fillStyle = css('soft');
    context.font = font(11);
    const ticks = (cells, size, offset, room, least, put) => {
      const step = stepOf(least / size);
      const first = Math.max(0, Math.ceil((-offset / size - 0.5) / step) * step);
      for (let at = first; at < cells; at += step) {
        const middle = offset + (at + 0.5) * size;
        if (middle > room) break;
        put(at, middle);
      }
    };
    const folded = plane.folded !== undefined;
    context.textAlign = 'center';
    context.textBaseline = 'alphabetic';
    const longest = String(plane.columns - 1).length * 7 + 16;
    ticks(plane.columns, scale.x, origin.x, area.width, longest, (at, x) => {
      context.fillText(folded ? `+${at}` : String(at), MARGIN.left + x, MARGIN.top - 8);
    });
    context.textAlign = 'right';
    context.textBaseline = 'middle';
    if (plane.rows > 1 || rank > 1) {
      ticks(plane.rows, scale.y, origin.y, area.height, 20, (at, y) => {
        const label = folded ? at * plane.columns : at;
        const text = label >= 1e6 ? `${digits(label / 1e6)}M` : String(label);
        context.fillText(text, MARGIN.left - 8, MARGIN.top + y);
      });
    }
    context.font = font(12, 600);
    context.fillStyle = css('ink');
    context.textBaseline = 'alphabetic';
    context.textAlign = 'left';
    const across = folded ? about.axes[plane.folded] : about.axes[plane.columnAxis];
    if (across !== undefined) context.fillText(`${across} →`, MARGIN.left, 14);
    if (plane.rowAxis !== undefined) {
      context.textAlign = 'right';
      context.save();
      context.translate(12, MARGIN.top);
      context.rotate(-Math.PI / 2);
      context.fillText(`← ${about.axes[plane.rowAxis]}`, 0, 0);
      context.restore();
    }
  };

  // ---- The pointer and the keyboard

  const tip = $('tip');
  const showTip = (event, html) => {
    tip.innerHTML = html;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    const x = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    const y = event.clientY + 16 + height > innerHeight ? event.clientY - 12 - height : event.clientY + 16;
    tip.style.left = `${Math.max(4, x)}px`;
    tip.style.top = `${Math.max(4, y)}px`;
  };
  const hideTip = () => {
    tip.hidden = true;
  };

  const pointOf = (event) => {
    const box = map.getBoundingClientRect();
    return [event.clientX - box.left - MARGIN.left, event.clientY - box.top - MARGIN.top];
  };
  const numberAt = (x, y) => {
    const [c, r] = [Math.floor((x - origin.x) / scale.x), Math.floor((y - origin.y) / scale.y)];
    const isInside = x >= 0 && y >= 0 && x <= area.width && y <= area.height;
    if (!isInside || c < 0 || r < 0 || c >= plane.columns || r >= plane.rows) return -1;
    return plane.number(r, c);
  };

  const nameOf = (number) => (rank ? indicesOf(number).join(', ') : 'of an array without axes');
  const stateOf = (number) => {
    const entry = entryOf(number);
    if (entry >= 0) return about.states[states[entry]];
    return framed.has(number) ? `not stored, ${about.states[WAITING]}` : 'not stored';
  };

  let drag = null;
  map.addEventListener('pointerdown', (event) => {
    if (event.button !== 0) return;
    drag = { x: event.clientX, y: event.clientY, from: { ...origin }, moved: false };
    map.setPointerCapture(event.pointerId);
  });
  map.addEventListener('pointermove', (event) => {
    if (drag) {
      const [dx, dy] = [event.clientX - drag.x, event.clientY - drag.y];
      if (drag.moved || Math.hypot(dx, dy) > 4) {
        drag.moved = true;
        map.classList.add('moves');
        hideTip();
        origin = { x: drag.from.x + dx, y: drag.from.y + dy };
        clamp();
        draw();
        return;
      }
    }
    const number = numberAt(...pointOf(event));
    if (number < 0) return hideTip();
    const entry = entryOf(number);
    const lines = [stateOf(number)];
    if (entry >= 0) {
      lines.unshift(bytesText(sizes[entry]) + (about.element === null ? '' : `, ratio ${digits(ratios[entry])} : 1`));
    }
    showTip(event, `<b>Shard ${nameOf(number)}</b>${lines.map((line) => `<span>${escape(line)}</span>`).join('')}`);
  });
  map.addEventListener('pointerup', (event) => {
    const wasDragged = drag?.moved;
    drag = null;
    map.classList.remove('moves');
    if (wasDragged) return;
    const number = numberAt(...pointOf(event));
    if (number >= 0) select(number);
  });
  map.addEventListener('pointerleave', hideTip);
  map.addEventListener('wheel', (event) => {
    event.preventDefault();
    hideTip();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016)), ...pointOf(event));
  }, { passive: false });
  map.addEventListener('dblclick', (event) => zoom(2, ...pointOf(event)));
  map.addEventListener('keydown', (event) => {
    const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    if (steps[event.key]) {
      event.preventDefault();
      const cell = (view.selected !== null && cellOf(view.selected)) || [0, -1];
      const [r, c] = cell.map((at, i) => at + steps[event.key][i]);
      if (r < 0 || c < 0 || r >= plane.rows || c >= plane.columns) return;
      const number = plane.number(r, c);
      if (number >= 0) select(number);
    } else if (event.key === '+' || event.key === '=') {
      zoom(1.5, area.width / 2, area.height / 2);
    } else if (event.key === '-') {
      zoom(1 / 1.5, area.width / 2, area.height / 2);
    } else if (event.key === '0') {
      showAll();
    }
  });
  $('in').onclick = () => zoom(1.6, area.width / 2, area.height / 2);
  $('out').onclick = () => zoom(1 / 1.6, area.width / 2, area.height / 2);
  $('fit').onclick = showAll;

  // ---- One shard

  const fitCanvas = (canvas, height) => {
    const ratio = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(height * ratio));
    const to = canvas.getContext('2d');
    to.setTransform(ratio, 0, 0, ratio, 0, 0);
    return [to, width];
  };

  const select = (number) => {
    view.selected = number;
    showShard();
    draw();
  };

  const showShard = () => {
    const to = $('shard');
    const number = view.selected;
    if (number === null) {
      $('shard-title').textContent = 'Shard';
      const bad = [];
      for (let i = 0; i < count && bad.length < 6; i++) if (states[i] === DAMAGED) bad.push(i);
      for (let i = 0; i < count && bad.length < 6; i++) if (states[i] === TORN) bad.push(i);
      to.innerHTML = `<p class="empty">Click a cell to see what is in its shard.</p>${bad.length ? '<h3>Not well</h3>' : ''}`;
      for (const entry of bad) {
        const button = document.createElement('button');
        button.type = 'button';
        button.innerHTML = `<span class="badge"><i style="background:${css(STATE_COLOURS[states[entry]])}"></i>${nameOf(numbers[entry])}: ${about.states[states[entry]]}</span>`;
        button.onclick = () => {
          indicesOf(numbers[entry]).forEach((at, axis) => (view.at[axis] = at));
          rebuild();
          select(numbers[entry]);
        };
        to.append(button);
      }
      return;
    }
    const entry = entryOf(number);
    const indices = indicesOf(number);
    $('shard-title').textContent = `Shard ${nameOf(number)}`;
    const ranges = indices.map((index, axis) => {
      const start = index * about.shard[axis];
      return `${countText(start)}–${countText(Math.min(start + about.shard[axis], about.shape[axis]) - 1)}`;
    });
    const where = `<p class="where">${ranges.length ? `elements ${ranges.join(' × ')}` : 'one element'}</p>`;
    const colour = entry >= 0 ? STATE_COLOURS[states[entry]] : framed.has(number) ? 'waiting' : 'absent';
    const rows = [['State', `<span class="badge"><i style="background:${css(colour)}"></i>${stateOf(number)}</span>`]];
    if (entry < 0) {
      to.innerHTML = `${where}<table>${rows.map(([a, b]) => `<tr><td>${a}</td><td>${b}</td></tr>`).join('')}</table><p class="empty">Every element has the fill value${framed.has(number) ? ', but for subchunks that wait in the frame' : ''}.</p>`;
      return;
    }
    const size = sizes[entry];
    rows.push(['Size', bytesText(size)]);
    if (about.element !== null) rows.push(['Ratio', `${digits(ratios[entry])} : 1`]);
    const look = lookOf(number);
    if (look) {
      const all = about.counts.reduce((a, b) => a * b, 1);
      rows.push(['Subchunks stored', `${countText(look.stored)} of ${countText(all)}`]);
      rows.push(['Unused', `${bytesText(size - look.live)} (${percent(size - look.live, size)})`]);
    }
    let html = `${where}<table>${rows.map(([a, b]) => `<tr><td>${a}</td><td>${b}</td></tr>`).join('')}</table>`;
    if (look?.problem) html += `<p class="problem">${escape(look.problem)}</p>`;
    if (!look) {
      html += `<p class="empty">Its index was not read. <code>zarrs-cuda inspect ${escape(about.name)} ${indices.join(',')}</code> reads it, and <code>--all</code> reads all.</p>`;
      to.innerHTML = html;
      return;
    }
    html += '<h3>Bytes, from front to back</h3><canvas id="strip" role="img"></canvas><p class="note keys" id="strip-keys"></p>';
    if (look.subchunks.length) {
      html += '<h3>Subchunks</h3><canvas id="subchunks" role="img"></canvas><p class="note" id="subchunks-note"></p>';
    }
    to.innerHTML = html;
    paintStrip(look, size);
    if (look.subchunks.length) paintSubchunks(look.subchunks);
  };

  const paintStrip = (look, size) => {
    const canvas = $('strip');
    const [to, width] = fitCanvas(canvas, 26);
    const totals = [0, 0, 0, 0];
    let at = 0;
    const narrow = [];
    for (const { kind, length } of look.strip) {
      totals[kind] += length;
      const [x, w] = [(at / size) * width, (length / size) * width];
      to.fillStyle = css(KINDS[kind]);
      to.fillRect(x, 0, w, 26);
      // What is narrow is still seen.
      if (kind > 1 && w < 2) narrow.push([kind, Math.min(x, width - 2)]);
      at += length;
    }
    for (const [kind, x] of narrow) {
      to.fillStyle = css(KINDS[kind]);
      to.fillRect(x, 0, 2, 26);
    }
    const keys = [1, 0, 2, 3].filter((kind) => totals[kind]);
    $('strip-keys').innerHTML = keys
      .map((kind) => `<span><i style="background:${css(KINDS[kind])}"></i>${KINDS[kind]} <b>${bytesText(totals[kind])}</b></span>`)
      .join('');
    canvas.setAttribute('aria-label', keys.map((kind) => `${KINDS[kind]} ${bytesText(totals[kind])}`).join(', '));
    canvas.onpointermove = (event) => {
      const box = canvas.getBoundingClientRect();
      const place = ((event.clientX - box.left) / box.width) * size;
      let start = 0;
      const run = look.strip.find(({ length }) => (start += length) > place) ?? look.strip.at(-1);
      showTip(event, `<b>${KINDS[run.kind]}</b><span>${countText(run.length)} bytes from ${countText(start - run.length)} on</span>`);
    };
    canvas.onpointerleave = hideTip;
  };

  /** Subchunks as tiles: the last two axes make a tile, the others one tile beside the other. */
  const paintSubchunks = (subchunks) => {
    const counts = about.counts;
    const columns = counts.at(-1) ?? 1;
    const rows = counts.at(-2) ?? 1;
    const tiles = subchunks.length / (rows * columns);
    const canvas = $('subchunks');
    const width = canvas.clientWidth;
    let best = { across: 1, height: Infinity, cell: 0 };
    for (let across = 1; across <= tiles; across++) {
      const gaps = (across - 1) * 5;
      const cell = Math.min(30, (width - gaps) / (across * columns));
      const down = Math.ceil(tiles / across);
      const height = down * rows * cell + (down - 1) * 5;
      if (height <= 200 || best.cell === 0) {
        best = { across, height, cell };
        if (height <= 200) break;
      }
      if (height < best.height) best = { across, height, cell };
    }
    const { across, cell, height } = best;
    canvas.style.height = `${height}px`;
    const [to] = fitCanvas(canvas, height);
    const scaleHere = scaleOf(subchunks.filter((size) => size > 0).map((size) => size - 1));
    const gap = cell >= 5 ? 1 : 0;
    const place = (number) => {
      const tile = Math.floor(number / (rows * columns));
      const [r, c] = [Math.floor(number / columns) % rows, number % columns];
      const [tx, ty] = [tile % across, Math.floor(tile / across)];
      return [tx * (columns * cell + 5) + c * cell, ty * (rows * cell + 5) + r * cell];
    };
    subchunks.forEach((size, number) => {
      const [x, y] = place(number);
      to.fillStyle = size ? hexOf(ramp[Math.round(255 * scaleHere.place(size - 1))]) : css('absent');
      to.fillRect(x, y, cell - gap, cell - gap);
    });
    const empty = subchunks.filter((size) => !size).length;
    const range = scaleHere
      ? scaleHere.min === scaleHere.max
        ? `each ${bytesText(scaleHere.min)}`
        : `${bytesText(scaleHere.min)} (pale) to ${bytesText(scaleHere.max)}`.replace('pale', dark.matches ? 'dark' : 'pale')
      : 'none is stored';
    $('subchunks-note').textContent = `${range}; ${empty ? `${countText(empty)} empty` : 'none empty'}`;
    canvas.onpointermove = (event) => {
      const box = canvas.getBoundingClientRect();
      const [px, py] = [event.clientX - box.left, event.clientY - box.top];
      const [tx, ty] = [Math.floor(px / (columns * cell + 5)), Math.floor(py / (rows * cell + 5))];
      const [c, r] = [Math.floor((px - tx * (columns * cell + 5)) / cell), Math.floor((py - ty * (rows * cell + 5)) / cell)];
      const number = (ty * across + tx) * rows * columns + r * columns + c;
      if (tx >= across || c >= columns || r >= rows || !(number in subchunks)) return hideTip();
      const indices = counts.map((_, axis) => {
        const behind = counts.slice(axis + 1).reduce((a, b) => a * b, 1);
        return Math.floor(number / behind) % counts[axis];
      });
      const size = subchunks[number];
      showTip(event, `<b>Subchunk ${indices.join(', ')}</b><span>${size ? bytesText(size - 1) : 'empty'}</span>`);
    };
    canvas.onpointerleave = hideTip;
  };

  // ---- Histograms

  /** Bars of counts; bin b has sizes from 2^(b/4) bytes on. */
  const paintHistogram = (id, bins, noun) => {
    const canvas = $(id);
    const [to, width] = fitCanvas(canvas, 128);
    let first = bins.findIndex((n) => n > 0);
    if (first < 0) {
      to.fillStyle = css('faint');
      to.font = font(12);
      to.fillText('none', 0, 16);
      return;
    }
    let last = bins.length - 1;
    while (!bins[last]) last--;
    const more = Math.max(0, Math.ceil((17 - (last - first)) / 2));
    first = Math.max(0, first - more);
    last += more;
    const most = bins.reduce((a, b) => Math.max(a, b), 0);
    const [top, bottom] = [18, 104];
    const bar = width / (last - first + 1);
    const x = (bin) => (bin - first) * bar;
    to.strokeStyle = css('line');
    to.lineWidth = 1;
    for (const y of [top, (top + bottom) / 2]) {
      to.beginPath();
      to.moveTo(0, Math.round(y) + 0.5);
      to.lineTo(width, Math.round(y) + 0.5);
      to.stroke();
    }
    to.fillStyle = css('faint');
    to.font = font(11);
    to.textAlign = 'left';
    to.textBaseline = 'alphabetic';
    to.fillText(plural(most, noun), 0, top - 5);
    to.fillStyle = css('live');
    for (let bin = first; bin <= last; bin++) {
      const n = bins[bin] ?? 0;
      if (!n) continue;
      const height = Math.max(1.5, (n / most) * (bottom - top));
      to.fillRect(x(bin) + (bar > 4 ? 0.5 : 0), bottom - height, Math.max(1, bar - (bar > 4 ? 1 : 0)), height);
    }
    to.strokeStyle = css('faint');
    to.beginPath();
    to.moveTo(0, bottom + 0.5);
    to.lineTo(width, bottom + 0.5);
    to.stroke();
    // Labels at powers of two, as many as have room.
    const octaves = Math.max(1, Math.ceil(60 / (4 * bar)));
    to.fillStyle = css('soft');
    for (let bin = Math.ceil(first / 4) * 4; bin <= last; bin += 4) {
      if ((bin / 4) % octaves) continue;
      const label = bytesText(2 ** (bin / 4));
      const half = to.measureText(label).width / 2;
      const at = x(bin);
      to.fillRect(Math.round(at), bottom, 1, 4);
      to.textAlign = 'center';
      to.fillText(label, Math.min(width - half, Math.max(half, at)), bottom + 17);
    }
    canvas.setAttribute('aria-label', `${plural(bins.reduce((a, b) => a + b, 0), noun)} by size`);
    canvas.onpointermove = (event) => {
      const box = canvas.getBoundingClientRect();
      const bin = first + Math.floor((event.clientX - box.left) / bar);
      const [low, high] = [2 ** (bin / 4), 2 ** ((bin + 1) / 4)];
      showTip(event, `<b>${plural(bins[bin] ?? 0, noun)}</b><span>${bytesText(low)} to ${bytesText(high)}</span>`);
    };
    canvas.onpointerleave = hideTip;
  };

  const shardBins = [];
  for (const size of sizes) {
    const bin = Math.floor(4 * Math.log2(Math.max(size, 1)));
    shardBins[bin] = (shardBins[bin] ?? 0) + 1;
  }
  for (let bin = 0; bin < shardBins.length; bin++) shardBins[bin] ??= 0;

  const showHistograms = () => {
    paintHistogram('histogram', about.bins, 'subchunk');
    const seen = about.bins.reduce((a, b) => a + b, 0);
    const empty = about.emptySubchunks;
    $('histogram-note').textContent = `${countText(seen)} stored and ${countText(empty)} empty, in ${plural(lookAt.size, 'shard')} whose index was read`;
    paintHistogram('shards', shardBins, 'shard');
    const median = Float64Array.from(sizes).sort()[Math.floor(count / 2)];
    $('shards-note').textContent = count ? `median ${bytesText(median)}; a bar is a quarter of an octave` : '';
  };

  // ---- Around the map

  const stateCounts = about.states.map(() => 0);
  for (const state of states) stateCounts[state]++;
  let framedOnly = 0;
  for (const number of framed) if (entryOf(number) < 0) framedOnly++;
  stateCounts[WAITING] += framedOnly;

  const showHeader = () => {
    $('name').textContent = about.name;
    $('line').textContent = [
      `${times(about.shape)} ${about.dataType}`,
      `shards ${times(about.shard)}`,
      `subchunks ${times(about.subchunk)}`,
      about.chain,
    ].join('  ·  ');
    const bad = stateCounts[DAMAGED] + stateCounts[TORN];
    const tiles = [
      ['Shards stored', countText(count), `of ${countText(volume)}, ${percent(count, volume)}`],
      ['Stored bytes', bytesText(storedBytes), about.element === null ? '' : `${bytesText(decodedBytes)} decoded`],
      ['Ratio', about.element === null || !storedBytes ? '–' : `${digits(decodedBytes / storedBytes)} : 1`, 'decoded to stored'],
      ['Indices read', countText(lookAt.size), lookAt.size < count ? `of ${countText(count)}` : 'all'],
      ['Not well', countText(bad), `${countText(stateCounts[DAMAGED])} damaged, ${countText(stateCounts[TORN])} to recover`, bad > 0],
      ['To tidy', countText(stateCounts[WAITING] + stateCounts[2]), `${countText(stateCounts[WAITING])} to consolidate, ${countText(stateCounts[2])} to compact`],
    ];
    $('tiles').innerHTML = tiles
      .map(([term, value, note, isBad]) => `<div><dt>${term}</dt><dd class="${isBad ? 'bad' : ''}">${value}<small>${note || '&nbsp;'}</small></dd></div>`)
      .join('');
    const rest = lookAt.size < count ? 'Shards that are not read are the rest: --all reads them.' : '';
    $('footer').innerHTML = [`index: ${escape(about.index)}`, `made by zarrs-cuda ${about.version}`, rest]
      .filter(Boolean)
      .map((text) => `<span>${text}</span>`)
      .join('');
  };

  const showMetrics = () => {
    const to = $('metrics');
    for (const [name, metric] of Object.entries(METRICS)) {
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = metric.name;
      button.dataset.metric = name;
      button.setAttribute('role', 'radio');
      button.disabled = name === 'ratio' && about.element === null;
      if (button.disabled) button.title = 'Elements have no fixed size';
      button.onclick = () => {
        view.metric = name;
        recolour();
      };
      to.append(button);
    }
  };

  const showAxes = () => {
    const to = $('axes');
    to.textContent = '';
    if (rank < 2) return;
    const choice = (label, key, other) => {
      const element = document.createElement('label');
      const list = document.createElement('select');
      list.id = key;
      about.axes.forEach((name, axis) => {
        const option = new Option(`${name} (${countText(about.grid[axis])})`, axis, false, axis === view[key]);
        list.append(option);
      });
      list.onchange = () => {
        const chosen = Number(list.value);
        if (chosen === view[other]) view[other] = view[key];
        view[key] = chosen;
        showAxes();
        rebuild();
      };
      element.append(label, list);
      to.append(element);
    };
    choice('down', 'row', 'column');
    choice('across', 'column', 'row');
    about.axes.forEach((name, axis) => {
      if (axis === view.row || axis === view.column || about.grid[axis] < 2) return;
      const element = document.createElement('label');
      const slider = document.createElement('input');
      const output = document.createElement('output');
      slider.type = 'range';
      slider.max = about.grid[axis] - 1;
      slider.value = view.at[axis];
      slider.dataset.axis = axis;
      const say = () => {
        output.textContent = `${view.at[axis]} of ${about.grid[axis] - 1}`;
      };
      say();
      slider.oninput = () => {
        view.at[axis] = Number(slider.value);
        say();
        makePlane();
        draw();
      };
      element.append(name, slider, output);
      to.append(element);
    });
  };

  const showLegend = () => {
    const to = $('legend');
    const absent = volume - count;
    const key = (colour, name, n) => n === 0 ? '' : `<span><i style="background:${css(colour)}"></i>${name} <b>${countText(n)}</b></span>`;
    if (view.metric === 'state') {
      const keys = about.states.map((name, state) => key(STATE_COLOURS[state], name, stateCounts[state]));
      keys.push(key('absent', 'not stored', absent));
      to.innerHTML = `<div class="keys">${keys.join('')}</div>`;
      return;
    }
    const { scale: of, text, name } = METRICS[view.metric];
    if (!of) {
      to.innerHTML = `<div class="keys">${key('absent', 'not stored', absent)}</div>`;
      return;
    }
    const stops = Array.from({ length: 17 }, (_, i) => hexOf(ramp[Math.round((255 * i) / 16)]));
    const places = of.min === of.max ? [0] : [0, 0.25, 0.5, 0.75, 1];
    const ticks = places.map((place) => `<span style="left:${100 * place}%">${text(of.value(place))}</span>`);
    const gradient = of.min === of.max ? hexOf(ramp[Math.round(255 * 0.6)]) : `linear-gradient(90deg, ${stops.join(', ')})`;
    to.innerHTML = `<div class="scale"><div><div class="ramp" style="background:${gradient}"></div><div class="ticks">${ticks.join('')}</div></div><div class="keys">${key('absent', 'not stored', absent)}<span>${name.toLowerCase()} of a shard${of.log ? ', logarithmic' : ''}</span></div></div>`;
  };

  const recolour = () => {
    for (const button of $('metrics').children) {
      button.setAttribute('aria-checked', String(button.dataset.metric === view.metric));
    }
    colourAll();
    showLegend();
    draw();
  };

  const measure = () => {
    // A small grid takes less room.
    stage.style.height = '';
    const room = stage.clientWidth - MARGIN.left - 2;
    const cell = Math.min(room / plane.columns, MOST);
    const height = MARGIN.top + 2 + Math.ceil(plane.rows * Math.min(MOST, cell * 8));
    if (height < stage.clientHeight) stage.style.height = `${height}px`;
    area = {
      width: Math.max(1, stage.clientWidth - MARGIN.left - 2),
      height: Math.max(1, stage.clientHeight - MARGIN.top - 2),
    };
    makeFit();
  };

  const rebuild = () => {
    makePlane();
    measure();
    showAxes();
    showAll();
  };

  const everything = () => {
    readTheme();
    showHeader();
    recolour();
    showShard();
    // The map is painted before.
    requestAnimationFrame(() => setTimeout(showHistograms));
  };

  showMetrics();
  readTheme();
  rebuild();
  everything();
  dark.addEventListener('change', everything);
  const shownIn = () => `${innerWidth} ${innerHeight} ${stage.clientWidth} ${devicePixelRatio}`;
  let seen = shownIn();
  addEventListener('resize', () => {
    if (shownIn() === seen) return;
    seen = shownIn();
    measure();
    showAll();
    showShard();
    showHistograms();
  });
})();
