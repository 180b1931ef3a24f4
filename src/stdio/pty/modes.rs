//! Terminal modes that raw mode changes, in a form for a message to the guard.

use rustix::termios::{
    ControlModes, InputModes, LocalModes, OptionalActions, OutputModes, SpecialCodeIndex, Termios,
    tcgetattr, tcsetattr,
};

/// Terminal modes that raw mode changes. Source: cfmakeraw(3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Modes {
    input: InputModes,
    output: OutputModes,
    control: ControlModes,
    local: LocalModes,
    /// Minimum number of bytes of a read, and its timeout.
    min_time: [u8; 2],
}

/// Bytes of [`Modes`] in a record.
const MODES: usize = 4 * 4 + 2;

impl Modes {
    /// Returns the modes of a terminal.
    pub fn from_termios(termios: &Termios) -> Self {
        let codes = &termios.special_codes;
        Self {
            input: termios.input_modes,
            output: termios.output_modes,
            control: termios.control_modes,
            local: termios.local_modes,
            min_time: [
                codes[SpecialCodeIndex::VMIN],
                codes[SpecialCodeIndex::VTIME],
            ],
        }
    }

    /// Sets these modes in `termios`, and leaves its other settings.
    pub fn apply(self, termios: &mut Termios) {
        termios.input_modes = self.input;
        termios.output_modes = self.output;
        termios.control_modes = self.control;
        termios.local_modes = self.local;
        termios.special_codes[SpecialCodeIndex::VMIN] = self.min_time[0];
        termios.special_codes[SpecialCodeIndex::VTIME] = self.min_time[1];
    }

    fn to_bytes(self) -> [u8; MODES] {
        let mut bytes = [0; MODES];
        let words = [
            self.input.bits(),
            self.output.bits(),
            self.control.bits(),
            self.local.bits(),
        ];
        for (to, word) in bytes.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        bytes[MODES - 2..].copy_from_slice(&self.min_time);
        bytes
    }

    fn from_bytes(bytes: &[u8; MODES]) -> Self {
        let word = |index: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&bytes[4 * index..4 * index + 4]);
            u32::from_le_bytes(word)
        };
        Self {
            input: InputModes::from_bits_retain(word(0)),
            output: OutputModes::from_bits_retain(word(1)),
            control: ControlModes::from_bits_retain(word(2)),
            local: LocalModes::from_bits_retain(word(3)),
            min_time: [bytes[MODES - 2], bytes[MODES - 1]],
        }
    }
}

/// Terminal that the launcher has put into raw mode, with the modes to restore.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SavedTerminal {
    pub path: Vec<u8>,
    /// Modes before raw mode.
    pub saved: Modes,
    /// Modes in raw mode.
    pub raw: Modes,
}

impl SavedTerminal {
    /// Encodes the terminal and its modes.
    pub fn to_bytes(&self) -> Vec<u8> {
        [&self.saved.to_bytes(), &self.raw.to_bytes(), &self.path[..]].concat()
    }

    /// Decodes them; `None` if bytes are missing.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (saved, rest) = bytes.split_first_chunk::<MODES>()?;
        let (raw, path) = rest.split_first_chunk::<MODES>()?;
        Some(Self {
            path: path.to_vec(),
            saved: Modes::from_bytes(saved),
            raw: Modes::from_bytes(raw),
        })
    }

    /// Restores the modes, unless another process has changed them or the terminal is closed.
    pub fn restore(&self) {
        use rustix::fs::{Mode, OFlags, open};
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let Ok(terminal) = open(&self.path[..], flags, Mode::empty()) else {
            return;
        };
        if let Ok(mut termios) = tcgetattr(&terminal)
            && Modes::from_termios(&termios) == self.raw
        {
            self.saved.apply(&mut termios);
            let _ = tcsetattr(&terminal, OptionalActions::Now, &termios);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_terminal_roundtrips_to_guard() {
        let modes = |seed: u32| Modes {
            input: InputModes::from_bits_retain(seed),
            output: OutputModes::from_bits_retain(seed * 3),
            control: ControlModes::from_bits_retain(u32::MAX - seed),
            local: LocalModes::from_bits_retain(seed << 16),
            min_time: [1, seed as u8],
        };
        let charge = SavedTerminal {
            path: b"/dev/pts/7".to_vec(),
            saved: modes(0x0102_0304),
            raw: modes(77),
        };
        let bytes = charge.to_bytes();
        assert_eq!(SavedTerminal::from_bytes(&bytes), Some(charge));
        assert_eq!(SavedTerminal::from_bytes(&bytes[..2 * MODES - 1]), None);
    }
}
