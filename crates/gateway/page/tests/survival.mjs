// Replies that outlive a reload, the network and the gateway: no piece twice, none left out.

import { setTimeout as sleep } from 'node:timers/promises';

export async function a_reload_in_mid_reply_loses_nothing(world) {
  const { assert } = world;
  const visit = await world.Visit.inReply();
  await visit.page.reload();
  await visit.ready();
  // The page shows a reply as open from the next piece on, and no longer than the worker sends.
  const open = visit.page.locator('.message.assistant.open');
  await world.until(async () => {
    await world.goOnFor(20);
    await sleep(100);
    return await open.count() > 0;
  }, 60);
  await visit.watch();
  world.goOn();
  await visit.ended();
  const node = await visit.checkWhole();
  assert.equal(node.state, 'cut');
  await visit.checkGrowth();
  assert.equal(node.facts.reconnections, 1);
  // A time that includes a gap is not told as a speed.
  assert.equal(await visit.fact('speed').count(), 0);
  assert.equal(await visit.fact('reconnections').textContent(), '1');
  await visit.close();
}

export async function a_closed_tab_loses_nothing(world) {
  const visit = await world.Visit.inReply();
  const hash = await visit.page.evaluate(() => location.hash);
  await visit.page.close();
  await visit.tab(hash);
  world.goOn();
  await visit.ended();
  await visit.checkWhole();
  await visit.close();
}

export async function a_killed_gateway_loses_nothing(world) {
  const { assert, gateways } = world;
  const visit = await world.Visit.inReply(gateways.stored);
  await gateways.stored.kill();
  await visit.page.waitForSelector('.state :text("connection is lost")');
  world.goOn();
  const before = (await visit.last()).text;
  await gateways.stored.start();
  await visit.ended();
  const node = await visit.checkWhole();
  await visit.checkGrowth();
  assert.ok(node.text.startsWith(before) && node.text.length > before.length);
  assert.ok(node.facts.reconnections >= 1);
  // The events went on: nothing had to be computed again for the page.
  assert.equal(node.recomputed ?? 0, 0);
  assert.equal(node.facts.continued, 1);
  await visit.close();
}

export async function a_gateway_that_is_replaced_in_order_loses_nothing(world) {
  const { assert, gateways } = world;
  const visit = await world.Visit.inReply(gateways.stored);
  await gateways.stored.end();
  world.goOn();
  await gateways.stored.start();
  await visit.ended();
  const node = await visit.checkWhole();
  await visit.checkGrowth();
  assert.equal(node.state, 'cut');
  assert.equal(node.recomputed ?? 0, 0);
  await visit.close();
}

export async function a_reply_that_the_gateway_lost_is_computed_again(world) {
  const { assert, gateways } = world;
  const visit = await world.Visit.inReply(gateways.unstored);
  await gateways.unstored.kill();
  await visit.page.waitForSelector('.state :text("connection is lost")');
  world.goOn();
  await gateways.unstored.start();
  await visit.ended();
  const node = await visit.checkWhole();
  await visit.checkGrowth();
  assert.equal(node.recomputed, 1);
  await visit.page.waitForSelector('.state :text("computed again, with the same seed")');
  await visit.close();
}

export async function a_continued_reply_that_the_gateway_lost_is_computed_again(world) {
  const { assert, gateways } = world;
  const visit = await world.Visit.inReply(gateways.unstored);
  await visit.page.keyboard.press('Escape');
  world.goOn();
  await visit.ended();
  const stopped = await visit.last();
  await world.goOnFor(0);
  await visit.page.click('[data-name="continueReply"]');
  const body = visit.page.locator('#log .message:last-child.assistant.open .body');
  await world.until(async () => {
    await world.goOnFor(40);
    return (await body.textContent()).length >= stopped.text.length + 30;
  }, 60);
  await gateways.unstored.kill();
  await visit.page.waitForSelector('.state :text("connection is lost")');
  world.goOn();
  await gateways.unstored.start();
  await visit.ended();
  const node = await visit.last();
  assert.equal(node.recomputed, 1);
  assert.equal(node.text, stopped.text + await visit.recompute(node));
  await visit.close();
}

export async function a_worker_that_differs_is_told(world) {
  const { assert, gateways } = world;
  const visit = await world.Visit.inReply(gateways.unstored);
  await gateways.unstored.kill();
  await visit.page.waitForSelector('.state :text("connection is lost")');
  world.goOn();
  // As if a worker of another version answered now: the seed of the request differs.
  await visit.page.evaluate(async () => {
    const { readingOf } = await import('/page/chat.js');
    const { id } = document.querySelector('.message.assistant').dataset;
    const { node } = readingOf({ id });
    node.body = JSON.stringify({ ...JSON.parse(node.body), seed: 1 });
  });
  await gateways.unstored.start();
  await visit.ended();
  const node = await visit.last();
  assert.equal(node.state, 'failed');
  await visit.checkGrowth();
  await visit.page.waitForSelector('.state .wrong:text("differs after")');
  await visit.close();
}

export async function a_lost_network_loses_nothing(world) {
  const { assert } = world;
  const visit = await world.Visit.inReply();
  await visit.context.setOffline(true);
  // The stream is cut at its next piece.
  world.goOn();
  await visit.page.waitForSelector('.state :text("offline")');
  const before = (await visit.last()).text;
  await visit.context.setOffline(false);
  await visit.ended();
  const node = await visit.checkWhole();
  assert.ok(node.text.length > before.length);
  await visit.checkGrowth();
  assert.ok(node.facts.reconnections >= 1);
  await visit.close();
}

export async function a_message_without_a_gateway_is_sent_when_it_is_back(world) {
  const { gateways } = world;
  const visit = await (await world.Visit.open(gateways.unstored)).ready('tale-7m');
  await visit.settings({ max: 10 });
  await gateways.unstored.kill();
  await visit.send('Once a bear', false);
  await visit.page.waitForSelector('.state :text("does not answer")');
  await gateways.unstored.start();
  await visit.ended();
  await visit.checkWhole();
  await visit.close();
}

export async function a_begun_reply_that_stalls_says_so(world) {
  const { assert } = world;
  const visit = await world.Visit.inReply();
  const line = visit.page.locator('.state :text("No more text for some seconds")');
  assert.equal(await line.count(), 0);
  // The worker stands still.
  await line.waitFor();
  world.goOn();
  await line.waitFor({ state: 'detached' });
  await visit.ended();
  await visit.checkWhole();
  await visit.close();
}
