// SPDX-License-Identifier: Apache-2.0
#include "core/base/log.h"

#include <spdlog/logger.h>
#include <spdlog/sinks/ansicolor_sink-inl.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>

#include "core/base/per_process.h"
#include "core/base/settings.h"

namespace weir {
namespace {

spdlog::level::level_enum spdlog_level(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kTrace:
      return spdlog::level::trace;
  }
  return spdlog::level::err;
}

LogLevel level_from(const std::string& text) {
  if (text == "error") return LogLevel::kError;
  if (text == "info") return LogLevel::kInfo;
  if (text == "debug") return LogLevel::kDebug;
  if (text == "trace") return LogLevel::kTrace;
  return LogLevel::kWarn;
}

// %p is the process and %h the host, so that the ranks of a job can be told apart.
std::string expand_file_name(const std::string& pattern) {
  std::string name;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char next = pattern[i] == '%' && i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (next == 'p') {
      name += std::to_string(getpid());
    } else if (next == 'h') {
      char host[256] = {};
      if (gethostname(host, sizeof(host) - 1) == 0) name += host;
    } else if (next == '%') {
      name += '%';
    } else {
      name += pattern[i];
      continue;
    }
    ++i;
  }
  return name;
}

// spdlog's own mutex for standard error is shared by all sinks, and stays locked in a child that
// was forked while another thread of the parent wrote a line.
struct SinkMutex {
  using mutex_t = std::mutex;
  static mutex_t& mutex() {
    static constinit PerProcess<std::mutex> it;
    return it.get();
  }
};

struct Log {
  Log();

  std::unique_ptr<spdlog::logger> logger;
  LogLevel level = LogLevel::kWarn;
  std::string file_error;  // why the file of WEIR_LOG_FILE is not used
  std::atomic<bool> told{false};
};

Log::Log() {
  std::shared_ptr<spdlog::sinks::sink> sink;
  const Result<Settings>& settings = process_settings();
  if (settings.ok()) {
    level = level_from(settings.value().log_level);
    const std::string& pattern = settings.value().log_file;
    if (!pattern.empty()) {
      const std::string name = expand_file_name(pattern);
      try {
        sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(name, /*truncate=*/false);
        sink->set_pattern("%Y-%m-%d %H:%M:%S.%e weir[%P] %l: %v");
      } catch (const std::exception& error) {
        file_error = "WEIR_LOG_FILE=\"" + pattern + "\" cannot be written, so the log stays on " +
                     "standard error: " + error.what();
      }
    }
  }
  if (!sink) {
    sink = std::make_shared<spdlog::sinks::ansicolor_stderr_sink<SinkMutex>>();
    sink->set_pattern("%H:%M:%S.%e weir[%P] %^%l%$: %v");
  }
  logger = std::make_unique<spdlog::logger>("weir", std::move(sink));
  logger->set_level(spdlog_level(level));
  logger->flush_on(spdlog::level::trace);
}

constexpr int kUnknownLevel = -1;
std::atomic<int> log_level{kUnknownLevel};

Log& process_log() {
  // Read first, because reading the settings may log, which must not happen while the log is being
  // made.
  (void)process_settings();
  static constinit PerProcess<Log> instance;
  Log& log = instance.get();
  // Not while it is made: of several threads that do so at once, one's is kept.
  if (!log.file_error.empty() && !log.told.exchange(true)) log.logger->warn(log.file_error);
  log_level.store(static_cast<int>(log.level), std::memory_order_relaxed);
  return log;
}

}  // namespace

bool log_enabled(LogLevel level) {
  int highest = log_level.load(std::memory_order_relaxed);
  if (highest == kUnknownLevel) highest = static_cast<int>(process_log().level);
  return static_cast<int>(level) <= highest;
}

void log(LogLevel level, std::string_view text) {
  if (!log_enabled(level)) return;
  process_log().logger->log(spdlog_level(level), spdlog::string_view_t(text.data(), text.size()));
}

}  // namespace weir
