//! A software NPU: driver rules, firmware and array behind the driver's door.
