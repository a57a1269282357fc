// Pictures of the documentation: `cargo xtask page --pictures`.

const SIZE = { viewport: { width: 1240, height: 720 } };
const PHONE = { viewport: { width: 390, height: 760 }, locale: 'ja-JP', colorScheme: 'dark', hasTouch: true, isMobile: true };

export async function pictures({ Visit }) {
  const desk = await (await Visit.open(undefined, SIZE)).ready('tale-7m');
  // With this seed the story is one of a bear and a seal, in English.
  await desk.settings({ seed: 11 });
  await desk.send('Once a bear');
  await desk.page.click('[data-name="again"]');
  await desk.page.waitForSelector('.message.assistant .place:text("2/2")');
  await desk.ended();
  await desk.page.click('.message.assistant [data-name="earlier"]');
  await desk.page.click('[data-name="replay"]');
  await desk.page.waitForSelector('.replay.right');
  await desk.page.focus('#composer');
  await desk.page.mouse.move(0, 400);
  await desk.shoot('page');
  await desk.close();

  const phone = await (await Visit.open(undefined, PHONE)).ready('tale-7m');
  await phone.settings({ seed: 13 });
  await phone.send('クマが海辺に行って');
  await phone.shoot('page-phone');
  await phone.close();
}
