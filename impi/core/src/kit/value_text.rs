//! Values of labels, methods and packets as text.

use crate::packet::{PacketHeader, PacketType, ProcId, host_address};
use crate::world::{ImpiJob, Label};

/// Returns the values of a label, comma-separated.
pub(super) fn value(label: Label, data: &[u8]) -> String {
    let size = match label {
        Label::Version | Label::ProcPid => 8,
        Label::HostAddress | Label::ProcAddress => 16,
        _ => 4,
    };
    if !data.len().is_multiple_of(size) {
        return format!("{} bytes, which are not values of this label", data.len());
    }
    let values = data.chunks_exact(size).map(|value| match label {
        Label::Version => format!("{}.{}", number(&value[..4]), number(&value[4..])),
        Label::HostAddress | Label::ProcAddress => address(value),
        Label::TagUpperBound | Label::CrossoverSize | Label::MaxLinear => {
            i32::from_be_bytes(std::array::from_fn(|at| value[at])).to_string()
        }
        _ => number(value).to_string(),
    });
    values.collect::<Vec<_>>().join(", ")
}

/// Reads a big-endian number.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn address(bytes: &[u8]) -> String {
    host_address(std::array::from_fn(|at| bytes[at])).to_string()
}

/// Returns the name of a method of authentication.
pub(super) fn method(number: u32) -> String {
    match number {
        0 => "IMPI_AUTH_NONE".into(),
        1 => "IMPI_AUTH_KEY".into(),
        8 => "wireup's token".into(),
        _ => format!("method {number}"),
    }
}

/// Returns the text of a process: its rank where it is known.
pub(super) fn process(id: ProcId, world: Option<&ImpiJob>) -> String {
    let rank = world.and_then(|world| world.rank_of(id));
    rank.map_or_else(
        || format!("{}/{}", address(&id.host), id.pid),
        |rank| rank.to_string(),
    )
}

/// Describes a packet, and returns it with the section of the specification about it.
pub(super) fn packet(header: &PacketHeader, world: Option<&ImpiJob>) -> (&'static str, String) {
    let pair = format!(
        "{} -> {}",
        process(header.source, world),
        process(header.destination, world)
    );
    let request = format!("request {:#x}", header.source_request);
    let message = || {
        format!(
            "{pair}: {} of {} bytes, tag {}, context {}, {request}",
            header.length, header.message_length, header.tag, header.context
        )
    };
    let long = header.message_length != u64::from(header.length);
    match header.kind {
        PacketType::Data if long => ("3.7.2", format!("DATA {}, a further part", message())),
        PacketType::Data => ("3.7.1", format!("DATA {}", message())),
        PacketType::DataSync if long => {
            ("3.7.2", format!("DATASYNC {}, the first part", message()))
        }
        PacketType::DataSync => ("3.7.1", format!("DATASYNC {}", message())),
        PacketType::ProtoAck => ("3.6", format!("PROTOACK {pair}")),
        PacketType::SyncAck => (
            "3.7",
            format!(
                "SYNCACK {pair}: {request}, receiver's request {:#x}",
                header.destination_request
            ),
        ),
        PacketType::Cancel => ("3.7.4", format!("CANCEL {pair}: {request}")),
        PacketType::CancelYes => ("3.7.4", format!("CANCELYES {pair}: {request}")),
        PacketType::CancelNo => ("3.7.4", format!("CANCELNO {pair}: {request}")),
        PacketType::Fini => ("3.8", "FINI".into()),
    }
}
