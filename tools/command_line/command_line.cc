// SPDX-License-Identifier: Apache-2.0
#include "command_line/command_line.h"

#include <CLI/CLI.hpp>
#include <utility>

namespace weir::cli {

Option Option::required() {
  option_->required();
  return *this;
}

template <class T>
Option Option::range(T min, T max) {
  option_->check(CLI::Range(min, max));
  return *this;
}
template Option Option::range(int, int);
template Option Option::range(uint32_t, uint32_t);
template Option Option::range(uint64_t, uint64_t);
template Option Option::range(double, double);

Option Option::not_negative() {
  option_->check(CLI::NonNegativeNumber);
  return *this;
}

Option Option::one_of(std::vector<std::string> allowed) {
  option_->check(CLI::IsMember(std::move(allowed)));
  return *this;
}

Option Option::size() {
  option_->transform(CLI::AsSizeValue(false));
  return *this;
}

Option Option::delimiter(char delimiter) {
  option_->delimiter(delimiter);
  return *this;
}

Option Option::value_count(int count) {
  option_->expected(count);
  return *this;
}

Option Option::one_each_time() {
  option_->allow_extra_args(false);
  return *this;
}

Option Option::take_all() {
  option_->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  return *this;
}

Option Option::excludes(const std::string& option) {
  option_->excludes(option);
  return *this;
}

Option Option::needs(const std::string& option) {
  option_->needs(option);
  return *this;
}

Option Option::group(const std::string& heading) {
  option_->group(heading);
  return *this;
}

Option Option::value_name(const std::string& name) {
  option_->type_name(name);
  return *this;
}

Option Option::show_default() {
  option_->capture_default_str();
  return *this;
}

template <class T>
Option Command::add_option(const std::string& names, T& value, const std::string& help) {
  return Option(app_->add_option(names, value, help));
}
template Option Command::add_option(const std::string&, bool&, const std::string&);
template Option Command::add_option(const std::string&, int&, const std::string&);
template Option Command::add_option(const std::string&, uint32_t&, const std::string&);
template Option Command::add_option(const std::string&, int64_t&, const std::string&);
template Option Command::add_option(const std::string&, uint64_t&, const std::string&);
template Option Command::add_option(const std::string&, double&, const std::string&);
template Option Command::add_option(const std::string&, std::string&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<int>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<uint32_t>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<double>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::string>&,
                                    const std::string&);

Option Command::add_option(const std::string& names, Reader reader, const std::string& help) {
  const auto read = [names, reader = std::move(reader)](const std::string& argument) {
    const std::string wrong = reader(argument);
    if (!wrong.empty()) throw CLI::ValidationError(names, wrong);
  };
  return Option(app_->add_option_function<std::string>(names, read, help));
}

Option Command::add_flag(const std::string& names, bool& value, const std::string& help) {
  return Option(app_->add_flag(names, value, help));
}

Option Command::option(const std::string& name) const { return Option(app_->get_option(name)); }

Command Command::add_subcommand(const std::string& name, const std::string& help) {
  return Command(app_->add_subcommand(name, help));
}

void Command::require_subcommand() { app_->require_subcommand(1); }
void Command::on_parsed(std::function<void()> run) { app_->callback(std::move(run)); }
bool Command::parsed() const { return app_->parsed(); }
bool Command::was_given(const std::string& option) const { return app_->count(option) != 0; }
void Command::footer(const std::string& text) { app_->footer(text); }
void Command::take_last() {
  app_->option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
}

CommandLine::CommandLine(const std::string& description, const std::string& program)
    : Command(nullptr), owned_(std::make_unique<CLI::App>(description, program)) {
  app_ = owned_.get();
}

CommandLine::~CommandLine() = default;

std::optional<int> CommandLine::parse(int argc, char** argv, int wrong_status) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app_->exit(error) == 0 ? 0 : wrong_status;
  }
  return std::nullopt;
}

std::optional<int> CommandLine::parse(int argc, char** argv, std::string* wrong) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app_->exit(help);
  } catch (const CLI::ParseError& error) {
    *wrong = error.what();
    return kWrongArguments;
  }
  return std::nullopt;
}

int CommandLine::wrong(const std::string& option, const std::string& text) {
  app_->exit(CLI::ValidationError(option, text));
  return kWrongArguments;
}

}  // namespace weir::cli
