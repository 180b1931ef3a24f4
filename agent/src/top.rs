//! `wireup top` on a terminal. Here, and not in `wireup`, because of the library that draws: a launch starts without it.

use std::io;
use std::time::{Duration, Instant};

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table, TableState};
use ratatui::{DefaultTerminal, Frame};
use wireup::cli::agent_commands::top::view::{self, Sample, SortKey, SortOrder};
use wireup::cli::agent_commands::top::{TopArgs, TopSession};
use wireup_core::failure::CommandError;

/// Columns between two of the table.
const GAP: u16 = 2;

/// State of the screen.
struct Screen {
    order: SortOrder,
    by_host: bool,
    before: Option<Sample>,
    now: Sample,
    state: TableState,
}

/// Shows the job until its end, or until the user has seen enough.
///
/// # Errors
/// If there is no such job, it does not answer, or the terminal cannot be used.
pub fn main(args: &TopArgs) -> Result<u8, CommandError> {
    let watch = TopSession::new(args)?;
    let Some(now) = watch.sample()? else {
        return Err(CommandError::job("the job has ended".to_owned()));
    };
    let screen = Screen {
        order: args.order(),
        by_host: args.hosts,
        before: None,
        now,
        state: TableState::default(),
    };
    let mut terminal =
        ratatui::try_init().map_err(|error| CommandError::system("the terminal", error))?;
    let shown = show(&mut terminal, screen, &watch, args.refresh());
    ratatui::restore();
    shown
}

fn show(
    terminal: &mut DefaultTerminal,
    mut screen: Screen,
    watch: &TopSession,
    refresh: Duration,
) -> Result<u8, CommandError> {
    let broken = |error: io::Error| CommandError::system("the terminal", error);
    let mut due = Instant::now() + refresh.min(Duration::from_millis(500));
    loop {
        terminal.draw(|frame| screen.draw(frame)).map_err(broken)?;
        let rest = due.saturating_duration_since(Instant::now());
        if event::poll(rest).map_err(broken)? {
            if let Event::Key(key) = event::read().map_err(broken)?
                && key.kind != KeyEventKind::Release
                && !screen.obey(key)
            {
                return Ok(0);
            }
            continue;
        }
        let Some(sample) = watch.sample()? else {
            return Ok(0);
        };
        screen.before = Some(std::mem::replace(&mut screen.now, sample));
        due = Instant::now() + refresh;
    }
}

impl Screen {
    /// Executes the action of a key; returns false when the command is to end.
    fn obey(&mut self, key: KeyEvent) -> bool {
        let page = 10;
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return false,
            KeyCode::Char('q') | KeyCode::Esc => return false,
            KeyCode::Char('h') => self.by_host = !self.by_host,
            KeyCode::Char(letter) => {
                if let Some(key) = key_of(letter) {
                    self.order = self.order.chosen(key);
                }
            }
            KeyCode::Down => self.state.scroll_down_by(1),
            KeyCode::Up => self.state.scroll_up_by(1),
            KeyCode::PageDown => self.state.scroll_down_by(page),
            KeyCode::PageUp => self.state.scroll_up_by(page),
            KeyCode::Home => self.state.select_first(),
            KeyCode::End => self.state.select_last(),
            _ => {}
        }
        true
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let (head, rows) = match self.by_host {
            true => view::hosts(self.before.as_ref(), &self.now, self.order),
            false => view::ranks(self.before.as_ref(), &self.now, self.order),
        };
        let [title, table, keys] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Min(0),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        let widths = widths(head, &rows);
        let bold = Style::new().add_modifier(Modifier::BOLD);
        let rows = rows.into_iter().map(Row::new);
        let shown = Table::new(rows, widths)
            .header(Row::new(head.iter().copied()).style(bold))
            .column_spacing(GAP)
            .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_widget(Line::from(view::title(&self.now)).style(bold), title);
        frame.render_stateful_widget(shown, table, &mut self.state);
        let help =
            "sort: r rank  n host  c cpu  m memory  o output  f fence   h hosts/ranks   q quit";
        frame.render_widget(Line::from(help), keys);
    }
}

/// Returns the key by which a letter sorts.
fn key_of(letter: char) -> Option<SortKey> {
    Some(match letter {
        'r' => SortKey::Rank,
        'n' => SortKey::Host,
        'c' => SortKey::Cpu,
        'm' => SortKey::Memory,
        'o' => SortKey::Output,
        'f' => SortKey::Fence,
        _ => return None,
    })
}

/// Columns as wide as their texts; the last has the rest.
fn widths(head: &[&str], rows: &[Vec<String>]) -> Vec<Constraint> {
    let wide = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        let longest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        longest.max(head[column].chars().count())
    };
    let length = |column| match column + 1 == head.len() {
        true => Constraint::Min(0),
        false => Constraint::Length(u16::try_from(wide(column)).unwrap_or(u16::MAX)),
    };
    (0..head.len()).map(length).collect()
}
