//! Screen on a terminal: keys, drawing, and the terminal's state before and after.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::text::{Line, Text};
use ratatui::widgets::{Clear, Paragraph};
use ratatui::{DefaultTerminal, Frame};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::snapshot::{Snapshot, time};
use super::source::Report;
use super::state::State;
use super::view::{Look, Sort, body, header, problems_page};

/// Longest time without a new drawing, so that the time and the times to attempts go on.
const REDRAW: Duration = Duration::from_secs(1);

/// Time between two checks of the thread that reads keys for the end of the command.
const LOOK_UP: Duration = Duration::from_millis(200);

const KEYS: &str = "q quit  p pause  w problems  left/right order  up/down scroll  ? help";

const HELP: &[&str] = &[
    "q, Ctrl-C      quit",
    "p              pause and go on; the sources are read meanwhile",
    "w              all problems, and back",
    "left, right    order of the workers",
    "up, down       scroll by a line; PageUp, PageDown by a page; Home to the top",
    "?              this help, and back",
    "",
    "Rates, times and shares are those of the last 10 s, or of the last two",
    "readings if these are further apart. tok/s counts the tokens of running",
    "replies too. ttft is the time from the delivery of a request to its first",
    "token (of a gateway: from its submission), for replies that ended; quantiles",
    "are estimated as PromQL's histogram_quantile does. drafts is the share of",
    "drafted tokens that were accepted, prefix that of prompt tokens from the cache.",
    "-              no source has this figure",
];

/// Page that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Page {
    #[default]
    Main,
    Problems,
    Help,
}

/// Choices of the person at the screen.
#[derive(Debug, Default)]
struct Controls {
    page: Page,
    sort: Sort,
    scroll: usize,
    /// Lines that a page of scrolling has, from the last drawing.
    height: usize,
    /// Figures that are shown until the pause ends.
    paused: Option<Snapshot>,
}

impl Controls {
    /// Takes a key. Returns false if it ends the command.
    fn take(&mut self, key: KeyEvent, now: impl FnOnce() -> Snapshot) -> bool {
        if key.kind == KeyEventKind::Release {
            return true;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        let page = |page| if self.page == page { Page::Main } else { page };
        match key.code {
            KeyCode::Char('c') if control => return false,
            KeyCode::Char('q') => return false,
            KeyCode::Char('p') => {
                self.paused = if self.paused.is_none() { Some(now()) } else { None };
            }
            KeyCode::Char('w') => (self.page, self.scroll) = (page(Page::Problems), 0),
            KeyCode::Char('?') => (self.page, self.scroll) = (page(Page::Help), 0),
            KeyCode::Esc => (self.page, self.scroll) = (Page::Main, 0),
            KeyCode::Left => self.sort = self.sort.next(true),
            KeyCode::Right => self.sort = self.sort.next(false),
            KeyCode::Up => self.scroll = self.scroll.saturating_sub(1),
            // The drawing limits it.
            KeyCode::Down => self.scroll += 1,
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(self.height),
            KeyCode::PageDown => self.scroll += self.height,
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        true
    }

    /// Draws the page of these figures, or of those at the pause.
    fn draw(&mut self, frame: &mut Frame<'_>, snapshot: &Snapshot, colored: bool) {
        let area = frame.area();
        let width = usize::from(area.width);
        let look = Look { width, sort: self.sort, all_problems: false, colored };
        let note = if self.paused.is_some() { "  PAUSED" } else { "" };
        let snapshot = self.paused.as_ref().unwrap_or(snapshot);
        let top = header(snapshot, look, note);
        let lines = match self.page {
            Page::Main => body(snapshot, look),
            Page::Problems => problems_page(snapshot, look),
            Page::Help => HELP.iter().map(|text| Line::raw(*text)).collect(),
        };
        let above = u16::try_from(top.len()).unwrap_or(u16::MAX).min(area.height);
        let between = area.height.saturating_sub(above + 1);
        self.height = usize::from(between);
        self.scroll = self.scroll.min(lines.len().saturating_sub(self.height));
        let scroll = u16::try_from(self.scroll).unwrap_or(u16::MAX);
        let part = |y, height| Rect { y: area.y + y, height, ..area }.intersection(area);
        frame.render_widget(Clear, area);
        frame.render_widget(Paragraph::new(Text::from(top)), part(0, above));
        let shown = Paragraph::new(Text::from(lines)).scroll((scroll, 0));
        frame.render_widget(shown, part(above, between));
        frame.render_widget(Line::raw(KEYS), part(above + between, 1));
    }
}

/// Terminal with the screen, which is as it was before when this is dropped.
///
/// A panic restores the terminal too, before its message is printed.
struct Screen(DefaultTerminal);

impl Screen {
    fn enter() -> Result<Self> {
        ratatui::try_init().map(Self).context("setting up the terminal")
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing else can be done for a terminal that is gone.
        let _ = ratatui::try_restore();
    }
}

/// Shows the figures of all sources until a key or the token ends it.
///
/// # Errors
///
/// Returns an error if the terminal fails or a task of a source has panicked.
pub(super) async fn run(
    mut state: State,
    mut reports: mpsc::Receiver<Report>,
    mut tasks: JoinSet<()>,
    ended: CancellationToken,
    colored: bool,
) -> Result<()> {
    let mut screen = Screen::enter()?;
    let mut keys = keys();
    let mut controls = Controls::default();
    let mut redraw = interval(REDRAW);
    redraw.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let now = || state.snapshot(Instant::now(), time());
        let drawn = screen.0.draw(|frame| controls.draw(frame, &now(), colored));
        drawn.context("drawing on the terminal")?;
        tokio::select! {
            Some(report) = reports.recv() => state.take(report),
            event = keys.recv() => match event {
                Some(Event::Key(key)) if !controls.take(key, now) => return Ok(()),
                Some(_) => {}
                None => bail!("the terminal cannot be read any more"),
            },
            Some(ended) = tasks.join_next() => ended.context("reading a source")?,
            () = ended.cancelled() => return Ok(()),
            _ = redraw.tick() => {}
        }
    }
}

/// Reads the events of the terminal on a thread, which ends with the receiver or the terminal.
fn keys() -> mpsc::Receiver<Event> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        while !sender.is_closed() {
            let event = match event::poll(LOOK_UP) {
                Ok(false) => continue,
                Ok(true) => event::read(),
                Err(error) => Err(error),
            };
            let Ok(event) = event else { return };
            if sender.blocking_send(event).is_err() {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests;
