//! Screens on a test terminal, and keys.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::style::Color;

use super::{Controls, Page};
use crate::snapshot::{Gateway, Model, Snapshot, Total, Worker};
use crate::view::Sort;

/// Figures of two models with three workers, of which one cannot be read, and of a gateway.
fn full() -> Snapshot {
    let worker = |address: &str, model: &str| Worker {
        address: address.to_owned(),
        model: model.to_owned(),
        state: "ready",
        version: "0.1.0".to_owned(),
        ..Worker::default()
    };
    let workers = vec![
        Worker {
            running: Some(3),
            slots: Some(8),
            tokens_per_s: Some(141.3),
            requests_per_s: Some(1.25),
            errors_per_s: Some(0.0),
            first_token_p50_s: Some(0.0179),
            first_token_p95_s: Some(0.23),
            drafts_accepted: Some(0.71),
            prefix_cache_hits: Some(0.4),
            ..worker("worker-1:9464", "tale-7m")
        },
        Worker { state: "unreachable", ..worker("worker-2:9464", "tale-7m") },
        Worker {
            state: "draining",
            revision: "2026-11-21".to_owned(),
            running: Some(1),
            slots: Some(1),
            tokens_per_s: Some(9.5),
            requests_per_s: Some(0.1),
            errors_per_s: Some(0.004),
            first_token_p50_s: Some(1.4),
            first_token_p95_s: Some(12.0),
            ..worker("[2001:db8::7]:9464", "llama-3.1-70b")
        },
    ];
    let models = vec![
        Model {
            model: "llama-3.1-70b".to_owned(),
            ready: Some(117),
            bulk: Some(2048),
            in_work: Some(1),
            consumers: Some(0),
            retry: Some(4),
            dead: Some(12),
            dead_new: Some(3),
            published_per_s: Some(2.4),
            settled_per_s: Some(0.1),
        },
        Model {
            model: "tale-7m".to_owned(),
            ready: Some(0),
            bulk: Some(0),
            in_work: Some(3),
            consumers: Some(2),
            retry: Some(0),
            dead: Some(0),
            dead_new: Some(0),
            published_per_s: Some(1.3),
            settled_per_s: Some(1.25),
        },
    ];
    let gateways = vec![Gateway {
        address: "gateway:9090".to_owned(),
        state: "serves",
        running: Some(4),
        streams: Some(3),
        requests_per_s: Some(1.4),
        refused_per_s: Some(0.1),
        failed_per_s: Some(0.0),
        reattached_per_s: Some(0.2),
        first_token_p50_s: Some(0.021),
        first_token_p95_s: Some(2.4),
    }];
    let problems = [
        "worker-2:9464 cannot be read: cannot connect: Connection refused (os error 111); next \
         attempt in 8 s",
        "117 requests of llama-3.1-70b wait and no worker takes them",
        "3 new dead letters of llama-3.1-70b within 10 s: see `nsbridge queue dead --model \
         llama-3.1-70b`",
        "worker worker-1:9464 of tale-7m: the broker blocks its replies",
    ];
    Snapshot {
        time: "2026-11-25T15:04:05Z".to_owned(),
        broker: Some("amqps://mq.example/%2f".to_owned()),
        total: Total {
            tokens_per_s: Some(150.8),
            requests_per_s: Some(1.35),
            errors_per_s: Some(0.004),
        },
        problems: problems.map(str::to_owned).to_vec(),
        models,
        workers,
        gateways,
    }
}

fn drawn_with(
    controls: &mut Controls,
    snapshot: &Snapshot,
    width: u16,
    height: u16,
) -> TestBackend {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| controls.draw(frame, snapshot, false)).unwrap();
    terminal.backend().clone()
}

fn drawn(snapshot: &Snapshot, width: u16, height: u16) -> String {
    drawn_with(&mut Controls::default(), snapshot, width, height).to_string()
}

fn press(controls: &mut Controls, keys: &[KeyCode]) {
    for key in keys {
        let goes_on = controls.take(KeyEvent::new(*key, KeyModifiers::NONE), full);
        assert!(goes_on, "{key:?}");
    }
}

#[test]
fn a_wide_terminal_shows_all_columns() {
    insta::assert_snapshot!("full", drawn(&full(), 150, 26));
}

#[test]
fn a_narrow_terminal_drops_columns() {
    insta::assert_snapshot!("narrow", drawn(&full(), 80, 26));
}

#[test]
fn a_terminal_without_figures_says_so() {
    let empty = Snapshot { time: "2026-11-25T15:04:05Z".to_owned(), ..Snapshot::default() };
    insta::assert_snapshot!("empty", drawn(&empty, 80, 8));
}

#[test]
fn without_problems_the_heading_names_what_was_read() {
    let all = Snapshot { problems: Vec::new(), ..full() };
    let heading = |snapshot: &Snapshot| {
        let screen = drawn(snapshot, 100, 20);
        let line = screen.lines().find(|line| line.contains("NO PROBLEMS")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{screen}")).trim_matches(['"', ' ']).to_owned()
    };
    assert_eq!(heading(&all), "NO PROBLEMS");
    let queues = Snapshot { workers: Vec::new(), gateways: Vec::new(), ..all.clone() };
    assert_eq!(heading(&queues), "NO PROBLEMS of queues");
    let unread = all.models.iter().map(|model| Model { ready: None, ..model.clone() });
    let no_broker = Snapshot { models: unread.collect(), ..all };
    assert_eq!(heading(&no_broker), "NO PROBLEMS of workers and gateways");
}

#[test]
fn the_page_of_problems_has_all_of_them() {
    let mut controls = Controls::default();
    press(&mut controls, &[KeyCode::Char('w')]);
    insta::assert_snapshot!("problems", drawn_with(&mut controls, &full(), 80, 14));
}

#[test]
fn the_help_fits_into_a_narrow_terminal() {
    let mut controls = Controls::default();
    press(&mut controls, &[KeyCode::Char('?')]);
    let drawn = drawn_with(&mut controls, &full(), 80, 20).to_string();
    assert!(drawn.contains("Ctrl-C") && drawn.contains("no source has this figure"), "{drawn}");
    assert!(super::HELP.iter().all(|line| line.len() <= 80));
    assert!(super::KEYS.len() <= 80);
}

#[test]
fn a_terminal_of_any_size_is_drawn() {
    for (width, height) in [(1, 1), (7, 2), (20, 3), (300, 4), (40, 100)] {
        drawn(&full(), width, height);
    }
}

#[test]
fn texts_from_outside_are_escaped() {
    let mut snapshot = full();
    let hostile = "\u{9b}31m\u{202e}\n";
    snapshot.workers[0].version = hostile.to_owned();
    snapshot.workers[0].model = hostile.to_owned();
    snapshot.models[0].model = hostile.to_owned();
    snapshot.broker = Some(hostile.to_owned());
    snapshot.problems[0] = hostile.to_owned();
    let drawn = drawn(&snapshot, 200, 40);
    let escaped = "\\u{9b}31m\\u{202e}";
    assert_eq!(drawn.matches(escaped).count(), 5, "{drawn}");
    assert!(!drawn.contains(['\u{9b}', '\u{202e}']), "{drawn}");
}

#[test]
fn problems_have_a_color_where_colors_are_wanted_only() {
    for colored in [true, false] {
        let mut terminal = Terminal::new(TestBackend::new(80, 26)).unwrap();
        let mut controls = Controls::default();
        terminal.draw(|frame| controls.draw(frame, &full(), colored)).unwrap();
        let cells = &terminal.backend().buffer().content;
        assert_eq!(cells.iter().any(|cell| cell.fg == Color::Red), colored);
        assert!(cells.iter().all(|cell| [Color::Red, Color::Reset].contains(&cell.fg)));
    }
}

#[test]
fn keys_scroll_within_the_page() {
    let mut controls = Controls::default();
    let draw = |controls: &mut Controls| drawn_with(controls, &full(), 80, 12).to_string();
    draw(&mut controls);
    press(&mut controls, &[KeyCode::Up]);
    assert_eq!((controls.scroll, controls.height), (0, 8));
    press(&mut controls, &[KeyCode::Down, KeyCode::Down]);
    let drawn = draw(&mut controls);
    assert!(!drawn.contains("PROBLEMS") && drawn.contains("nsbridge top"), "{drawn}");
    press(&mut controls, &[KeyCode::PageDown; 9]);
    let drawn = draw(&mut controls);
    assert!(drawn.contains("gateway:9090") && controls.scroll < 20, "{drawn}");
    press(&mut controls, &[KeyCode::PageUp; 9]);
    assert_eq!(controls.scroll, 0);
    press(&mut controls, &[KeyCode::Down, KeyCode::Home]);
    assert_eq!(controls.scroll, 0);
}

#[test]
fn keys_order_the_workers() {
    let mut controls = Controls::default();
    let first = |controls: &mut Controls| {
        let drawn = drawn_with(controls, &full(), 150, 26).to_string();
        let mut lines = drawn.lines().skip_while(|line| !line.contains("WORKERS")).skip(2);
        lines.next().unwrap().split_whitespace().next().unwrap().trim_matches('"').to_owned()
    };
    let mut seen = Vec::new();
    for sort in [Sort::Address, Sort::Model, Sort::Running, Sort::Tokens, Sort::FirstToken] {
        assert_eq!(controls.sort, sort);
        seen.push(first(&mut controls));
        press(&mut controls, &[KeyCode::Right]);
    }
    let (other, one) = ("[2001:db8::7]:9464", "worker-1:9464");
    assert_eq!(seen, [other, other, one, one, other]);
    press(&mut controls, &[KeyCode::Left]);
    assert_eq!(controls.sort, Sort::FirstToken);
}

#[test]
fn a_pause_keeps_the_figures_until_it_ends() {
    let mut controls = Controls::default();
    press(&mut controls, &[KeyCode::Char('p')]);
    let later = Snapshot { time: "later".to_owned(), ..full() };
    let drawn = |controls: &mut Controls| drawn_with(controls, &later, 120, 26).to_string();
    let paused = drawn(&mut controls);
    assert!(paused.contains("PAUSED") && paused.contains("15:04:05Z"), "{paused}");
    press(&mut controls, &[KeyCode::Char('p')]);
    let goes_on = drawn(&mut controls);
    assert!(!goes_on.contains("PAUSED") && goes_on.contains("later"), "{goes_on}");
}

#[test]
fn q_and_ctrl_c_end_the_command_and_escape_a_page() {
    let mut controls = Controls::default();
    press(&mut controls, &[KeyCode::Char('?'), KeyCode::Char('w'), KeyCode::Char('c')]);
    assert_eq!(controls.page, Page::Problems);
    press(&mut controls, &[KeyCode::Char('w')]);
    assert_eq!(controls.page, Page::Main);
    press(&mut controls, &[KeyCode::Char('?'), KeyCode::Esc]);
    assert_eq!(controls.page, Page::Main);
    let ends = |key| !Controls::default().take(key, full);
    assert!(ends(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)));
    assert!(ends(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
}
