(() => {
  'use strict';
  const root = document.documentElement;
  const byId = (id) => document.getElementById(id);
  root.classList.add('js');

  // Theme: the system's unless told otherwise; a page that may not store keeps it while it is open.
  const themes = ['system', 'light', 'dark'];
  const store = (value) => {
    try {
      if (value === undefined) return localStorage.getItem('draftbench-theme');
      localStorage.setItem('draftbench-theme', value);
    } catch { /* storage is switched off */ }
    return null;
  };
  const setTheme = (name) => {
    if (name === 'system') root.removeAttribute('data-theme');
    else root.dataset.theme = name;
    byId('theme').textContent = `theme: ${name}`;
  };
  let theme = Math.max(0, themes.indexOf(store()));
  setTheme(themes[theme]);
  byId('theme').addEventListener('click', () => {
    theme = (theme + 1) % themes.length;
    setTheme(themes[theme]);
    store(themes[theme]);
  });

  // Filters: everything that names its place by data attributes is shown or hidden.
  const form = byId('filters');
  const selects = [...form.querySelectorAll('select')];
  const boxes = [...form.querySelectorAll('input[name=method]')];
  const placed = [...document.querySelectorAll('#results [data-target], #results [data-suite], #results [data-method], #behaviour [data-target], #behaviour [data-concurrency], #behaviour [data-method], #cells tbody tr')];
  const rows = [...document.querySelectorAll('#cells tbody tr')];

  const apply = () => {
    const wanted = selects.filter((s) => s.value).map((s) => [s.name, s.value]);
    const methods = new Set(boxes.filter((b) => b.checked).map((b) => b.value));
    for (const el of placed) {
      const data = el.dataset;
      const off = wanted.some(([axis, value]) => axis in data && data[axis] !== value)
        || ('method' in data && !methods.has(data.method));
      if (el.ownerSVGElement) el.classList.toggle('off', off);
      else el.hidden = off;
    }
    for (const part of document.querySelectorAll('.setting, .figures > .fig, .setting > .fig')) {
      const named = [...part.querySelectorAll(part.classList.contains('setting') ? 'tbody tr[data-method]' : '[data-method]')];
      const drawn = [...part.querySelectorAll('.drawing')];
      part.classList.toggle('empty', (named.length > 0 && named.every((el) => el.hidden || el.classList.contains('off')))
        || (drawn.length > 0 && drawn.every((el) => el.hidden)));
    }
    for (const family of document.querySelectorAll('.family')) {
      const figures = [...family.querySelectorAll('.fig')];
      family.classList.toggle('empty', figures.length > 0 && figures.every((f) => f.classList.contains('empty')));
    }
    const n = rows.filter((row) => !row.hidden).length;
    byId('status').textContent = n === rows.length ? `${n} cells shown` : `${n} of ${rows.length} cells shown`;
    byId('n-methods').textContent = methods.size === boxes.length ? `all ${boxes.length}` : `${methods.size} of ${boxes.length}`;
    byId('nothing').hidden = n > 0;
    root.classList.toggle('none-match', n === 0);
  };

  const write = () => {
    const state = new URLSearchParams();
    for (const s of selects) if (s.value) state.append(s.name, s.value);
    if (boxes.some((b) => !b.checked)) {
      const checked = boxes.filter((b) => b.checked);
      for (const b of checked) state.append('method', b.value);
      if (checked.length === 0) state.append('method', '');
    }
    const hash = state.toString();
    try {
      history.replaceState(null, '', hash ? `#${hash}` : location.pathname + location.search);
    } catch {
      location.hash = hash;
    }
  };

  // A hash without "=" is a link to a place on the page and leaves the filters alone.
  const read = () => {
    const hash = location.hash.slice(1);
    if (!hash.includes('=')) return;
    const state = new URLSearchParams(hash);
    for (const s of selects) {
      const value = state.get(s.name) ?? '';
      s.value = [...s.options].some((o) => o.value === value) ? value : '';
    }
    const methods = state.getAll('method');
    for (const b of boxes) b.checked = methods.length === 0 || methods.includes(b.value);
  };

  const change = () => { write(); apply(); };
  const clear = () => {
    for (const s of selects) s.value = '';
    for (const b of boxes) b.checked = true;
    change();
  };
  form.addEventListener('change', change);
  form.addEventListener('submit', (event) => event.preventDefault());
  byId('clear').addEventListener('click', clear);
  byId('reset').addEventListener('click', () => { clear(); byId('clear').focus(); });
  for (const [id, checked] of [['all', true], ['none', false]]) {
    byId(id).addEventListener('click', () => {
      for (const b of boxes) b.checked = checked;
      change();
    });
  }
  const methodList = form.querySelector('.methods');
  document.addEventListener('click', (event) => {
    if (!methodList.contains(event.target)) methodList.open = false;
  });
  form.addEventListener('keydown', (event) => {
    if (event.key === 'Escape' && methodList.open) {
      methodList.open = false;
      methodList.querySelector('summary').focus();
    }
  });
  addEventListener('hashchange', () => { read(); apply(); });
  read();
  apply();

  // Sorting: numbers fall at first and texts rise; what has no number stays last.
  const sortBy = (head) => {
    const table = head.closest('table');
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    const column = heads.indexOf(head);
    const isNumber = head.dataset.kind === 'number';
    const before = head.getAttribute('aria-sort');
    const order = before === 'none' ? (isNumber ? 'descending' : 'ascending')
      : before === 'ascending' ? 'descending' : 'ascending';
    for (const h of heads) if (h.hasAttribute('aria-sort')) h.setAttribute('aria-sort', 'none');
    head.setAttribute('aria-sort', order);
    const sign = order === 'ascending' ? 1 : -1;
    const body = table.tBodies[0];
    // A row of a cell without numbers has one wide entry in their place.
    const entry = (row) => {
      const wide = [...row.cells].findIndex((cell) => cell.colSpan > 1);
      return wide >= 0 && column >= wide ? undefined : row.cells[column];
    };
    const number = (row) => {
      const v = entry(row)?.dataset.v;
      return v === undefined ? null : Number(v);
    };
    const compare = (a, b) => {
      if (!isNumber) return sign * a.cells[column].textContent.localeCompare(b.cells[column].textContent, 'en', { numeric: true });
      const [x, y] = [number(a), number(b)];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (x - y);
    };
    body.append(...[...body.rows].sort(compare));
  };
  for (const button of document.querySelectorAll('.sortable th button')) {
    button.addEventListener('click', () => sortBy(button.closest('th')));
  }

  // Print: what is folded is shown, but for lists that are long.
  addEventListener('beforeprint', () => {
    for (const d of document.querySelectorAll('#notes details, .methods')) d.open = false;
  });
})();
