// Opens a report.html in Chromium and checks what a reader does with it: filters, sorting, themes, narrow screens.
//
//   npm install --prefix /tmp/pw playwright-core
//   PLAYWRIGHT=/tmp/pw node tests/browser/page.mjs report.html [folder for screenshots]
//
// CHROMIUM names the browser, /usr/bin/chromium if it is not set. The page must hold two suites at least.
import assert from 'node:assert/strict';
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const home = path.resolve(process.env.PLAYWRIGHT ?? '.');
const { chromium } = createRequire(path.join(home, 'package.json'))('playwright-core');
const [file, shots] = process.argv.slice(2);
assert.ok(file, 'name a report.html');
const url = pathToFileURL(path.resolve(file)).href;
if (shots) mkdirSync(shots, { recursive: true });

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
  args: ['--headless', '--no-sandbox', '--disable-gpu', '--disable-background-networking', '--disable-component-update',
    '--disable-sync', '--no-first-run'],
});
const troubles = [];
let nChecks = 0;

/** A page at a width; what it says on the console or loads from elsewhere is a trouble. */
const open = async (width, colorScheme, hash = '') => {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme });
  const page = await context.newPage();
  page.on('console', (m) => { if (m.type() === 'error' || m.type() === 'warning') troubles.push(m.text()); });
  page.on('pageerror', (error) => troubles.push(String(error)));
  page.on('request', (r) => { if (!/^(file|data):/.test(r.url())) troubles.push(`loads ${r.url()}`); });
  await page.goto(url + hash);
  return page;
};
const check = async (name, run) => {
  try {
    await run();
    nChecks += 1;
    console.log(`ok    ${name}`);
  } catch (error) {
    troubles.push(`${name}: ${error.message}`);
    console.log(`WRONG ${name}: ${error.message}`);
  }
};
const rows = (page) => page.locator('#cells tbody tr:visible').count();
const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);

const page = await open(1280, 'light');
const all = await rows(page);
const options = (name) => page.locator(`select[name=${name}] option`).evaluateAll((o) => o.map((x) => x.value).filter(Boolean));

await check('a suite leaves its own rows and columns, and is in the address', async () => {
  const [suite] = await options('suite');
  const columns = await page.locator('.grid').first().locator('tbody tr').first().locator('td:visible').count();
  await page.selectOption('select[name=suite]', suite);
  const left = await rows(page);
  assert.ok(left > 0 && left < all, `${left} of ${all} rows`);
  const suites = await page.locator('#cells tbody tr:visible').evaluateAll((r) => [...new Set(r.map((x) => x.dataset.suite))]);
  assert.deepEqual(suites, [suite]);
  const now = await page.locator('.grid').first().locator('tbody tr').first().locator('td:visible').count();
  assert.ok(now < columns, `${now} of ${columns} columns`);
  assert.match(page.url(), new RegExp(`#suite=${suite}`));
  assert.match(await page.locator('#status').textContent(), new RegExp(`^${left} of ${all}`));
});

await check('the address brings the filters back, and clearing brings all rows', async () => {
  const hash = new URL(page.url()).hash;
  const again = await open(1280, 'light', hash);
  assert.equal(await rows(again), await rows(page));
  await again.context().close();
  await page.click('#clear');
  assert.equal(await rows(page), all);
  assert.ok(!page.url().includes('suite='));
});

await check('every other axis with a choice leaves fewer rows', async () => {
  for (const axis of ['target', 'sampling', 'thinking', 'concurrency']) {
    const values = await options(axis);
    if (values.length < 2) continue;
    await page.selectOption(`select[name=${axis}]`, values[0]);
    const left = await rows(page);
    assert.ok(left > 0 && left < all, `${axis}: ${left} of ${all}`);
    await page.click('#clear');
  }
});

await check('methods can be chosen by keyboard', async () => {
  await page.locator('.methods summary').focus();
  await page.keyboard.press('Enter');
  await page.locator('#none').focus();
  await page.keyboard.press('Enter');
  assert.equal(await rows(page), 0);
  assert.ok(await page.locator('#nothing').isVisible(), 'says that nothing matches');
  await page.locator('input[name=method]').nth(1).focus();
  await page.keyboard.press('Space');
  const left = await rows(page);
  assert.ok(left > 0 && left < all, `${left} of ${all}`);
  const arms = await page.locator('.grid tbody tr:visible').evaluateAll((r) => new Set(r.map((x) => x.dataset.method)).size);
  assert.equal(arms, 1);
  await page.keyboard.press('Escape');
  assert.ok(!await page.locator('.boxes').isVisible(), 'escape closes the list');
});

await check('a link to a note leaves the filters alone', async () => {
  const before = await rows(page);
  await page.locator('a[href^="#note-"]:visible').first().click();
  assert.equal(await rows(page), before);
  await page.locator('#clear').click();
});

await check('sorting sorts, both ways, and says so', async () => {
  for (const [table, name] of [['#cells', 'tau'], ['.grid >> nth=0', 'speedup'], ['#cells', 'method']]) {
    const head = page.locator(table).locator('th[aria-sort]', { has: page.locator(`button:text-is("${name}")`) }).first();
    const column = await head.evaluate((h) => [...h.parentNode.cells].indexOf(h));
    const isText = await head.getAttribute('data-kind') === 'text';
    const values = () => page.locator(table).locator('tbody tr').evaluateAll((list, [i, text]) => list
      .map((r) => (text ? r.cells[i].textContent : r.cells[i].dataset.v)).filter((v) => v !== undefined), [column, isText]);
    for (const way of isText ? ['ascending', 'descending'] : ['descending', 'ascending']) {
      await head.locator('button').click();
      assert.equal(await head.getAttribute('aria-sort'), way);
      const got = await values();
      assert.ok(got.length > 1);
      const compare = isText ? (a, b) => a.localeCompare(b, 'en', { numeric: true }) : (a, b) => a - b;
      const want = [...got].sort(way === 'ascending' ? compare : (a, b) => compare(b, a));
      assert.deepEqual(got, want, `${name} ${way}`);
    }
    const sorted = await page.locator(table).locator('th[aria-sort]:not([aria-sort=none])').count();
    assert.equal(sorted, 1);
  }
});

await check('the theme follows the system and then the button, which remembers', async () => {
  const dark = await open(1280, 'dark');
  assert.notEqual(await background(dark), await background(page));
  await page.click('#theme');
  assert.equal(await background(page), 'rgb(255, 255, 255)');
  await page.click('#theme');
  assert.equal(await background(page), await background(dark));
  await page.reload();
  assert.equal(await background(page), await background(dark));
  await dark.context().close();
  await page.click('#theme');
});

await check('text stands out from what is behind it, in both themes', async () => {
  for (const scheme of ['light', 'dark']) {
    const themed = await open(1280, scheme);
    const weak = await themed.evaluate(() => {
      const parse = (c) => c.match(/[\d.]+/g).map(Number);
      const light = ([r, g, b]) => [r, g, b].map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const behind = (el) => {
        for (let e = el; e; e = e.parentElement) {
          const c = parse(getComputedStyle(e).backgroundColor);
          if (c.length === 3 || c[3] === 1) return c;
        }
        return [255, 255, 255];
      };
      const found = new Set();
      for (const el of document.querySelectorAll('body *')) {
        const own = [...el.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
        if (!own || !el.checkVisibility() || el.closest('script, style, title, desc')) continue;
        const style = getComputedStyle(el);
        const color = parse(el.ownerSVGElement ? style.fill : style.color);
        const [a, b] = [light(color), light(behind(el))].sort((x, y) => y - x);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) found.add(`${el.tagName}.${el.className.baseVal ?? el.className} ${contrast.toFixed(2)}`);
      }
      return [...found];
    });
    assert.deepEqual(weak, [], scheme);
    await themed.context().close();
  }
});

await check('headings step down by one, ids are distinct, links within the page arrive', async () => {
  const wrong = await page.evaluate(() => {
    const levels = [...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]));
    const steps = levels.filter((l, i) => i > 0 && l > levels[i - 1] + 1);
    const ids = [...document.querySelectorAll('[id]')].map((e) => e.id);
    const twice = ids.filter((id, i) => ids.indexOf(id) !== i);
    const lost = [...document.querySelectorAll('a[href^="#"]')].map((a) => a.hash.slice(1)).filter((id) => !document.getElementById(id));
    const unnamed = [...document.querySelectorAll('svg[role=img]')].filter((s) => !s.querySelector('title')?.textContent || !s.querySelector('desc')?.textContent);
    return { first: levels[0], steps, twice, lost, unnamed: unnamed.length };
  });
  assert.deepEqual(wrong, { first: 1, steps: [], twice: [], lost: [], unnamed: 0 });
});

for (const width of [1280, 375]) {
  for (const scheme of ['light', 'dark']) {
    await check(`nothing sticks out at ${width} px, ${scheme}`, async () => {
      const sized = await open(width, scheme);
      assert.ok(await overflow(sized) <= 0, `${await overflow(sized)} px too wide`);
      if (shots) {
        const name = path.join(shots, `${path.basename(file, '.html')}-${width}-${scheme}`);
        await sized.screenshot({ path: `${name}.png`, fullPage: true });
      }
      await sized.evaluate(() => document.querySelectorAll('details').forEach((d) => { d.open = true; }));
      assert.ok(await overflow(sized) <= 0, `${await overflow(sized)} px too wide with everything unfolded`);
      await sized.context().close();
    });
  }
}

await check('print hides what cannot be pressed and is dark on white', async () => {
  const printed = await open(1280, 'dark');
  await printed.emulateMedia({ media: 'print', colorScheme: 'dark' });
  assert.ok(!await printed.locator('#filters').isVisible());
  assert.equal(await background(printed), 'rgb(255, 255, 255)');
  if (shots) await printed.pdf({ path: path.join(shots, `${path.basename(file, '.html')}.pdf`), format: 'A4', landscape: true, printBackground: true });
  await printed.context().close();
});

await browser.close();
assert.deepEqual(troubles, []);
console.log(`${nChecks} checks, ${all} cells`);
