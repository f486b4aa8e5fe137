// SPDX-License-Identifier: Apache-2.0
// The command line of a program: its options, its help and its error messages. It wraps CLI11,
// which is compiled in one file only, since each file that includes it takes seconds. For one
// thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace weir::cli {

// An option that was added; lives as long as its CommandLine. Each function returns the same
// option.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}

  Option required();
  // Inclusive, in the type of the option's value: int, uint32_t, uint64_t or double.
  template <class T>
  Option range(T min, T max);
  Option not_negative();
  Option one_of(std::vector<std::string> allowed);
  // Accepts sizes such as 64KB, where a KB is 1024 bytes.
  Option size();
  // Takes several values in one argument, such as 1,2,3.
  Option delimiter(char delimiter);
  Option value_count(int count);
  // Takes one argument each time that the option is given, however many follow.
  Option one_each_time();
  // If given twice, all values count, in an app whose options otherwise take the last one.
  Option take_all();
  Option excludes(const std::string& option);
  Option needs(const std::string& option);
  // In the help: the option's heading ("" hides the option), the name of its value, its default.
  Option group(const std::string& heading);
  Option value_name(const std::string& name);
  Option show_default();

 private:
  CLI::Option* option_;
};

// Interprets a string argument: stores it, or returns an error text.
using Reader = std::function<std::string(const std::string& argument)>;

// A program, or a subcommand of it; lives as long as its CommandLine.
class Command {
 public:
  // "-n,--name" for an option, "NAME" for a positional argument. The value is set by parsing. T is
  // bool, int, uint32_t, int64_t, uint64_t, double, std::string, or a vector of int, uint32_t,
  // double or std::string.
  template <class T>
  Option add_option(const std::string& names, T& value, const std::string& help = "");
  Option add_option(const std::string& names, Reader reader, const std::string& help);
  Option add_flag(const std::string& names, bool& value, const std::string& help);
  Option option(const std::string& name) const;

  Command add_subcommand(const std::string& name, const std::string& help);
  void require_subcommand();
  // Called by parse() when this command was given.
  void on_parsed(std::function<void()> run);
  bool parsed() const;
  bool was_given(const std::string& option) const;

  // Printed below the options.
  void footer(const std::string& text);
  // For options added from now on: if given twice, the last value counts.
  void take_last();

 protected:
  explicit Command(CLI::App* app) : app_(app) {}
  CLI::App* app_;
};

class CommandLine : public Command {
 public:
  explicit CommandLine(const std::string& description, const std::string& program = "");
  ~CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  static constexpr int kWrongArguments = 2;
  // Nothing when the program continues; otherwise its exit status: 0 after printing help,
  // `wrong_status` after printing an error.
  std::optional<int> parse(int argc, char** argv, int wrong_status = kWrongArguments);
  // The same; an error text goes into *wrong instead of to standard error.
  std::optional<int> parse(int argc, char** argv, std::string* wrong);
  // Prints `text` as an error of `option`, and returns kWrongArguments.
  int wrong(const std::string& option, const std::string& text);

 private:
  std::unique_ptr<CLI::App> owned_;
};

}  // namespace weir::cli
