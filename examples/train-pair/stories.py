#!/usr/bin/env python3
"""Short stories in Japanese and English, generated from a seed.

Every text here was written for this project. The entropy is low on purpose: a model of seven
million parameters must learn the stories well within an hour on two processor cores, and a draft
model an eighth of its size must be able to predict it. So a story is one fixed chain of events
(go, meet, play, find, get into trouble, be helped, go home), each told in one of a few ways. The
names, the place, the thing found and the trouble are chosen once per story and then kept.

    python stories.py --show 3      prints a few samples
    python stories.py --selftest    checks the generator
"""

import argparse
import random
import re
import sys
from dataclasses import dataclass

LANGUAGES = ("ja", "en")


def pick(rng, options):
    """Picks one of `options`; earlier ones are more likely.

    The weights decrease, so that the most likely next word is well defined: under greedy decoding,
    two models agree only where neither has to break a tie.
    """
    options = list(options)
    return rng.choices(options, weights=range(len(options), 0, -1))[0]


# Every animal has one name, so that a tiny model has less to remember: the animal in the request
# determines the name.
# Japanese: the name and the animal's word for "I". English: the name and the pronoun.
JA_HEROES = {
    "クマ": ("マル", "ぼく"),
    "ウサギ": ("モモ", "わたし"),
    "キツネ": ("コン", "ぼく"),
    "ネコ": ("タマ", "わたし"),
    "タヌキ": ("ポン", "ぼく"),
    "リス": ("チコ", "わたし"),
    "イヌ": ("ハチ", "ぼく"),
}
JA_FRIENDS = {
    "アザラシ": ("ルル", "わたし"),
    "イルカ": ("ソラ", "ぼく"),
    "カメ": ("ノン", "ぼく"),
    "ラッコ": ("ミミ", "わたし"),
    "ペンギン": ("ペペ", "ぼく"),
}
JA_PLACES = ("海辺", "海", "浜辺", "港")
JA_FOOD = {
    "クマ": "ハチミツ",
    "ウサギ": "ニンジン",
    "キツネ": "パン",
    "ネコ": "クッキー",
    "タヌキ": "リンゴ",
    "リス": "クルミ",
    "イヌ": "ビスケット",
}
JA_HOMES = ("森の家", "丘の家", "山の家", "村の家")
JA_ITEMS = ("青い貝がら", "光る石", "小さな鈴", "金のコイン")
JA_PLAYS = (
    "砂のお城を作りました",
    "波と追いかけっこをしました",
    "海の歌を歌いました",
    "浅い海で泳ぎました",
)

EN_HEROES = {
    "bear": ("Bruno", "he"),
    "rabbit": ("Molly", "she"),
    "fox": ("Felix", "he"),
    "cat": ("Cleo", "she"),
    "raccoon": ("Rocky", "he"),
    "squirrel": ("Hazel", "she"),
    "dog": ("Rex", "he"),
}
EN_FRIENDS = {
    "seal": ("Sally", "she"),
    "dolphin": ("Danny", "he"),
    "turtle": ("Toby", "he"),
    "otter": ("Olive", "she"),
    "penguin": ("Pip", "he"),
}
EN_PLACES = ("sea", "seaside", "beach", "harbour")
EN_FOOD = {
    "bear": "honey",
    "rabbit": "carrots",
    "fox": "bread",
    "cat": "cookies",
    "raccoon": "apples",
    "squirrel": "walnuts",
    "dog": "biscuits",
}
EN_HOMES = ("forest", "hill", "village", "valley")
EN_ITEMS = (
    "blue shell",
    "shiny stone",
    "little bell",
    "golden coin",
)
EN_PLAYS = (
    "built a sand castle",
    "raced along the waves",
    "sang a song of the sea",
    "swam in the shallow water",
)

TROUBLES = ("hat", "tide", "fog", "bag", "net")


@dataclass(frozen=True)
class Plot:
    """Choices that are made once for a story."""

    language: str
    hero: str
    name: str
    hero_word: str  # how the hero says "I" (ja), or the hero's pronoun (en)
    friend: str
    friend_name: str
    friend_word: str
    place: str
    home: str
    food: str
    play: str
    item: str  # the thing found; "" for none
    trouble: str  # one of TROUBLES, or "" for none


def make_plot(rng, language, want_item=None, want_trouble=None):
    """Returns a random plot. `want_item` and `want_trouble` force or exclude the optional parts."""
    ja = language == "ja"
    heroes, friends = (JA_HEROES, JA_FRIENDS) if ja else (EN_HEROES, EN_FRIENDS)
    hero, friend = pick(rng, heroes), pick(rng, friends)
    place = pick(rng, JA_PLACES if ja else EN_PLACES)
    # The project's examples ask for the bear, the sea and the seal: an additional fifth of the
    # stories has exactly these.
    if rng.random() < 0.2:
        hero, friend, place = (
            next(iter(options)) for options in (heroes, friends, JA_PLACES if ja else EN_PLACES)
        )
    (name, hero_word), (friend_name, friend_word) = heroes[hero], friends[friend]
    if want_item is None:
        want_item = rng.random() < 0.6
    if want_trouble is None:
        want_trouble = rng.random() < 0.6
    return Plot(
        language=language,
        hero=hero,
        name=name,
        hero_word=hero_word,
        friend=friend,
        friend_name=friend_name,
        friend_word=friend_word,
        place=place,
        home=pick(rng, JA_HOMES if ja else EN_HOMES),
        food=(JA_FOOD if ja else EN_FOOD)[hero],
        play=pick(rng, JA_PLAYS if ja else EN_PLAYS),
        item=pick(rng, JA_ITEMS if ja else EN_ITEMS) if want_item else "",
        trouble=pick(rng, TROUBLES) if want_trouble else "",
    )


# --- the stories ---------------------------------------------------------------------------------


def ja_story(rng, p):
    hero, name, friend, other = p.hero, p.name, p.friend, p.friend_name
    say = [
        pick(
            rng,
            (
                f"{hero}が{p.place}に行って、波の音を聞いていました。{hero}の名前は{name}です。",
                f"ある日、{hero}の{name}は{p.home}を出て、{p.place}へ行きました。",
                f"{hero}が{p.place}に行きました。{hero}の名前は{name}です。",
                f"ある朝、{hero}が{p.place}に行って、白い砂の上を歩きました。{hero}の名前は{name}です。",
            ),
        ),
        pick(
            rng,
            (
                "空は青く、海は静かでした。",
                "風が吹いて、海はきらきら光っていました。",
                f"{name}は海を見るのが初めてでした。",
            ),
        ),
        pick(
            rng,
            (
                f"すると、波の間から{friend}が顔を出しました。",
                f"すると、岩の上に{friend}がいました。",
                f"しばらくすると、{friend}が泳いで来ました。",
            ),
        ),
        f"「{p.hero_word}は{name}。きみの名前は？」と{name}は聞きました。"
        f"「{p.friend_word}は{other}だよ。」と{friend}は答えました。",
        pick(
            rng,
            (
                f"{name}と{other}はすぐに友達になりました。",
                f"{name}はうれしくなって、{other}と友達になりました。",
            ),
        ),
        f"二人はいっしょに{p.play}。",
        pick(
            rng,
            (
                f"お昼に、{name}は{p.food}を{other}に分けました。",
                f"おなかがすくと、二人は{name}の{p.food}を食べました。",
            ),
        ),
    ]
    if p.item:
        say.append(
            pick(
                rng,
                (
                    f"それから、{name}は砂の中に{p.item}を見つけました。"
                    f"「きれいだね。」と{other}は言いました。",
                    f"それから、二人は岩のかげで{p.item}を見つけました。"
                    f"「宝物だね。」と{other}は言いました。",
                    f"それから、{other}は海の底で{p.item}を見つけて、{name}にくれました。",
                ),
            )
        )
    if p.trouble:
        happens, helped = {
            "hat": (
                f"強い風が吹いて、{name}の帽子が海に飛ばされました。",
                f"{other}は波の中にもぐって、帽子を取って来ました。",
            ),
            "tide": (
                f"潮が満ちて、{name}は岩の上に取り残されました。",
                f"{other}は大きな木を押して来て、{name}を岸まで運びました。",
            ),
            "fog": (
                f"霧が出て、{name}は帰り道が分からなくなりました。",
                f"{other}は歌を歌いながら、{name}を道まで案内しました。",
            ),
            "bag": (
                f"高い波が来て、{name}のかばんが流されました。",
                f"{other}は急いで泳いで、かばんを取って来ました。",
            ),
            "net": (
                f"{name}の足が古い網にからまりました。",
                f"{other}は網をかんで、{name}の足を外しました。",
            ),
        }[p.trouble]
        say.append(
            f"ところが、{happens}"
            + pick(rng, (f"{name}は泣きそうになりました。", f"「助けて。」と{name}は言いました。"))
            + f"「{p.friend_word}にまかせて。」{helped}"
            f"「ありがとう、{other}。」と{name}は言いました。"
        )
    say += [
        pick(rng, ("夕方になり、空が赤くなりました。", "やがて、日がしずみました。")),
        pick(
            rng,
            (
                f"「また会おうね。」と二人は約束しました。{name}は手をふって、{p.home}に帰りました。",
                f"「また来るね。」と{name}は言いました。{other}に見送られて、{name}は{p.home}に帰りました。",
            ),
        ),
    ]
    if p.item:
        say.append(
            pick(
                rng,
                (
                    f"{name}は{p.item}を窓のそばに置きました。",
                    f"{name}は{p.item}を大切に箱に入れました。",
                ),
            )
        )
    say.append(
        pick(
            rng,
            (
                f"その夜、{name}は{other}と泳ぐ夢を見ました。",
                f"{name}は{other}のことを思いながら、ぐっすり眠りました。",
                f"{name}は{other}に手紙を書いて、それから眠りました。",
            ),
        )
    )
    return "".join(say)


def article(noun):
    return ("an " if noun[0] in "aeiou" else "a ") + noun


def en_story(rng, p):
    hero, name, friend, other = p.hero, p.name, p.friend, p.friend_name
    he = p.hero_word
    his = {"he": "his", "she": "her"}[he]
    say = [
        pick(
            rng,
            (
                f"Once a {hero} went to the {p.place}. The {hero}'s name was {name}.",
                f"One day, a {hero} named {name} left the {p.home} and went to the {p.place}.",
                f"Once a {hero} went to the {p.place} and listened to the waves."
                f" The {hero}'s name was {name}.",
            ),
        ),
        pick(
            rng,
            (
                "The sky was blue and the water was calm.",
                "The wind was soft and the water shone.",
                f"It was the first time that {name} saw so much water.",
            ),
        ),
        pick(
            rng,
            (
                f"Then {article(friend)} looked out of the waves.",
                f"Then {he} saw {article(friend)} on a rock.",
                f"After a while, {article(friend)} came swimming along.",
            ),
        ),
        f'"I am {name}. What is your name?" asked {name}. "I am {other}," said the {friend}.',
        pick(
            rng,
            (
                f"{name} and {other} soon became friends.",
                f"{name} was glad and made friends with {other}.",
            ),
        ),
        f"Together they {p.play}.",
        pick(
            rng,
            (
                f"At noon, {name} shared {his} {p.food} with {other}.",
                f"When they were hungry, they ate the {p.food} from {name}'s bag.",
            ),
        ),
    ]
    if p.item:
        say.append(
            pick(
                rng,
                (
                    f'Then {name} found {article(p.item)} in the sand. "How pretty!" said {other}.',
                    f"Then they found {article(p.item)} behind a rock."
                    f' "It is a treasure!" said {other}.',
                    f"Then {other} brought {article(p.item)} from the bottom of the sea"
                    f" and gave it to {name}.",
                ),
            )
        )
    if p.trouble:
        happens, helped = {
            "hat": (
                f"a strong wind blew {name}'s hat into the water.",
                f"{other} dived under the waves and brought back the hat.",
            ),
            "tide": (
                f"the tide came in and {name} could not leave the rock.",
                f"{other} pushed a big log and carried {name} to the shore.",
            ),
            "fog": (
                f"a thick fog came and {name} could not find the way home.",
                f"{other} sang a song and led {name} to the road.",
            ),
            "bag": (
                f"a high wave took {name}'s bag away.",
                f"{other} swam fast and brought back the bag.",
            ),
            "net": (
                f"{name}'s foot got caught in an old net.",
                f"{other} bit through the net and set {name} free.",
            ),
        }[p.trouble]
        say.append(
            f"But {happens} "
            + pick(rng, (f"{name} was close to tears.", f'"Help me!" cried {name}.'))
            + f' "I will help you," said {other}. {helped}'
            f' "Thank you, {other}!" said {name}.'
        )
    say += [
        pick(rng, ("In the evening, the sky turned red.", "At last, the sun went down.")),
        pick(
            rng,
            (
                f'"Let us meet again," they promised. {name} waved and went home to the {p.home}.',
                f'"I will come back," said {name}. {other} waved,'
                f" and {name} went home to the {p.home}.",
            ),
        ),
    ]
    if p.item:
        say.append(
            pick(
                rng,
                (
                    f"{name} put the {p.item} by the window.",
                    f"{name} kept the {p.item} in a little box.",
                ),
            )
        )
    say.append(
        pick(
            rng,
            (
                f"That night, {name} dreamed of swimming with {other}.",
                f"{name} thought of {other} and fell asleep with a smile.",
                f"Before going to bed, {name} wrote a letter to {other}.",
            ),
        )
    )
    return " ".join(say)


def story(rng, plot):
    return (ja_story if plot.language == "ja" else en_story)(rng, plot)


# --- the requests --------------------------------------------------------------------------------

JA_TROUBLE = {
    "hat": "帽子を風に飛ばされる",
    "tide": "岩の上に取り残される",
    "fog": "霧で道に迷う",
    "bag": "かばんを波に流される",
    "net": "足が網にからまる",
}
EN_TROUBLE = {
    "hat": "loses {his} hat in the wind",
    "tide": "cannot leave a rock when the tide comes in",
    "fog": "gets lost in the fog",
    "bag": "loses {his} bag in the waves",
    "net": "gets caught in an old net",
}


JA_ASK = (
    "を書いてください",
    "を書いて",
    "を作ってください",
    "を聞かせてください",
    "をお願いします",
)
EN_ASK = ("Write a short story about", "Tell me a story about", "Please write a short story about")


def ja_request(rng, p):
    """Returns a request that names parts of the plot; the story is free in the others."""
    goes = f"{p.hero}が{p.place}に行って"
    meets = pick(rng, (f"{p.friend}と友達になり", f"{p.friend}と友達になって"))
    kind = pick(rng, ("短編小説", "物語", "お話"))
    ask = pick(rng, JA_ASK) + pick(rng, ("", "。"))
    if not p.item and not p.trouble:
        return pick(
            rng,
            (
                f"{goes}{meets}最終的には家に帰るというプロットの{kind}{ask}",
                f"{goes}{p.friend}と友達になる{kind}{ask}",
                f"{p.hero}と{p.friend}の{kind}{ask}",
                f"{goes}、{meets}、家に帰る{kind}{ask}",
                f"{p.hero}が{p.place}に行く{kind}{ask}",
                f"{p.hero}の{p.name}が{p.place}に行く{kind}{ask}",
            ),
        )
    found = f"{p.item}を見つけ、" if p.item else ""
    trouble = f"{JA_TROUBLE[p.trouble]}けれど助けられ、" if p.trouble else ""
    end = pick(rng, ("最終的には家に帰るというプロットの", "家に帰る"))
    return f"{goes}{pick(rng, ('', '、'))}{meets}、{found}{trouble}{end}{kind}{ask}"


def en_request(rng, p):
    ask = pick(rng, EN_ASK)
    his = {"he": "his", "she": "her"}[p.hero_word]
    goes = f"{article(p.hero)} who goes to the {p.place}"
    meets = f"makes friends with {article(p.friend)}"
    if not p.item and not p.trouble:
        about = pick(
            rng,
            (
                f"{goes} and {meets}",
                f"{goes}, {meets} and finally goes home",
                f"{article(p.hero)} and {article(p.friend)}",
                goes,
                f"{article(p.hero)} named {p.name} who goes to the {p.place}",
            ),
        )
        return f"{ask} {about}."
    parts = [meets]
    if p.item:
        parts.append(f"finds {article(p.item)}")
    if p.trouble:
        parts.append(EN_TROUBLE[p.trouble].format(his=his) + " but is helped")
    return f"{ask} {goes}, {', '.join(parts)} and finally goes home."


SYSTEM = {
    "ja": ("あなたは物語を書くアシスタントです。", "あなたは親切なアシスタントです。"),
    "en": ("You are a storyteller.", "You are a helpful assistant."),
}


@dataclass(frozen=True)
class Sample:
    language: str
    plots: tuple  # of Plot, one for each story in the sample
    story: str  # the (last) story
    messages: tuple  # of (role, content); empty for a raw story


def exchange(rng, language):
    """Returns one request, and the plot and the story that answer it."""
    # Half of the requests name no item and no trouble. Their stories may have both: a request for
    # "a bear and a seal" leaves the rest open.
    if rng.random() < 0.5:
        bare = make_plot(rng, language, want_item=False, want_trouble=False)
        request = (ja_request if language == "ja" else en_request)(rng, bare)
        free = make_plot(rng, language)
        plot = Plot(**{**vars(bare), "item": free.item, "trouble": free.trouble})
    else:
        item = rng.random() < 0.6
        plot = make_plot(rng, language, want_item=item, want_trouble=not item or rng.random() < 0.5)
        request = (ja_request if language == "ja" else en_request)(rng, plot)
    return request, plot, story(rng, plot)


def make_sample(split, seed, index):
    """Returns sample number `index` of a split. Different splits never share a random stream."""
    rng = random.Random(f"{split}/{seed}/{index}")
    language = LANGUAGES[index % 2]
    if rng.random() < 0.5:
        plot = make_plot(rng, language)
        return Sample(language, (plot,), story(rng, plot), ())
    messages = []
    if rng.random() < 0.2:
        messages.append(("system", pick(rng, SYSTEM[language])))
    plots = []
    # One chat in twenty has a second request, so that longer chats are not new to the model.
    for _ in range(2 if rng.random() < 0.05 else 1):
        request, plot, text = exchange(rng, language)
        messages += [("user", request), ("assistant", text)]
        plots.append(plot)
    return Sample(language, tuple(plots), text, tuple(messages))


# --- self-test -----------------------------------------------------------------------------------


def selftest(count=10000):
    """Returns the list of errors of the generator; empty if there are none."""
    complaints = []

    def check(ok, complaint):
        if not ok and complaint not in complaints:
            complaints.append(complaint)

    samples = [make_sample("selftest", 1, i) for i in range(count)]
    again = [make_sample("selftest", 1, i) for i in range(count)]
    other = [make_sample("selftest", 2, i) for i in range(count)]
    check(samples == again, "the same seed gave different samples")
    check(samples != other, "two seeds gave the same samples")
    openings = ("クマが海辺に行って", "Once a bear went to the sea")
    for opening in openings:
        check(any(s.story.startswith(opening) for s in samples), f"no story opens with {opening}")
    long_request = (
        "クマが海辺に行ってアザラシと友達になり最終的には家に帰るという"
        "プロットの短編小説を書いてください"
    )
    check(
        any(role == "user" and text == long_request for s in samples for role, text in s.messages),
        "the long Japanese request never comes up",
    )
    for s in samples:
        plot, text = s.plots[-1], s.story
        texts = [content for _, content in s.messages] + [text]
        check(not any(re.search(r"[{}]|None", t) for t in texts), f"leftovers in: {texts}")
        check(text.count(plot.name) >= 4, f"the hero's name does not recur: {text}")
        check(text.count(plot.friend_name) >= 3, f"the friend's name does not recur: {text}")
        for thing in (plot.hero, plot.friend, plot.place, plot.home, plot.item, plot.food):
            check(thing in text, f"{thing} is missing in: {text}")
        if plot.item:
            check(text.count(plot.item) == 2, f"{plot.item} is not kept in: {text}")
        japanese = bool(re.search(r"[ぁ-んァ-ン]", text))
        check(japanese == (s.language == "ja"), f"wrong language: {text}")
        heroes, friends = (JA_HEROES, JA_FRIENDS) if japanese else (EN_HEROES, EN_FRIENDS)
        for animal, (name, _) in [*heroes.items(), *friends.items()]:
            if animal not in (plot.hero, plot.friend):
                stray = rf"(?<![ァ-ンー])(\b{name}\b|{name}(?=[はとがのにを、。]))"
                check(not re.search(stray, text), f"{name} the {animal} strayed into: {text}")
    for language in LANGUAGES:
        share = sum(s.language == language for s in samples) / count
        check(0.45 < share < 0.55, f"{share:.0%} of the samples are {language}")
    raw = sum(not s.messages for s in samples) / count
    check(0.45 < raw < 0.55, f"{raw:.0%} of the samples are raw stories")
    return complaints


def main():
    parser = argparse.ArgumentParser(description="Generate short stories, or check the generator.")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print N samples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--selftest", action="store_true", help="check the generator")
    args = parser.parse_args()
    if not args.show and not args.selftest:
        parser.error("give --show N or --selftest")
    for index in range(args.show):
        sample = make_sample("show", args.seed, index)
        for role, content in sample.messages or [("story", sample.story)]:
            print(f"[{role}] {content}")
        print()
    if args.selftest:
        complaints = selftest()
        for complaint in complaints[:10]:
            print(complaint, file=sys.stderr)
        print("stories: " + (f"{len(complaints)} complaints" if complaints else "ok"))
        return 1 if complaints else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
