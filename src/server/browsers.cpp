#include "server/browsers.h"

#include "http.h"
#include "server-common.h"
#include "server/requests.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <vector>

static std::string lower(std::string text) {
    std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
}

// "host:port" of an origin, empty if it has none, as "null"
static std::string authority_of(const std::string & origin) {
    const auto begin = origin.find("://");
    return begin == std::string::npos ? "" : origin.substr(begin + 3);
}

// without a port; an IPv6 address keeps its brackets
static std::string name_of(const std::string & authority) {
    return authority.substr(0, authority.find(':', authority.find(']') == std::string::npos ? 0 : authority.find(']')));
}

static bool is_this_machine(const std::string & name) {
    return name == "localhost" || name == "127.0.0.1" || name == "[::1]";
}

static std::vector<std::string> allowed_origins(const common_params & params) {
    std::vector<std::string> res;
    for (auto origin : string_split<std::string>(lower(params.cors_origins), ',')) {
        origin = string_strip(origin);
        if (!origin.empty() && origin.back() == '/') {
            origin.pop_back();
        }
        res.push_back(origin);
    }
    return res;
}

static bool is_allowed_origin(const common_params & params, const std::string & origin) {
    const auto allowed = allowed_origins(params);

    return std::any_of(allowed.begin(), allowed.end(), [&](const std::string & other) {
        const bool is_scheme = string_ends_with(other, "://*"); // editors and desktop programs have random hosts
        return other == "*" || other == origin || (is_scheme && string_starts_with(origin, other.substr(0, other.size() - 1))) ||
            (other == "localhost" && is_this_machine(name_of(authority_of(origin))));
    });
}

// an IP address, which nobody can point elsewhere: no top-level domain begins with a digit
static bool is_address(const std::string & name) {
    return name[0] == '[' || std::isdigit((unsigned char) name[name.rfind('.') + 1]);
}

static std::string own_name() {
    char name[256] = "";
    gethostname(name, sizeof(name) - 1);
    return lower(name);
}

static bool is_allowed_host(const common_params & params, const std::string & name) {
    static const std::string own = own_name();

    const auto & hosts   = params.hostnames;
    const auto   allowed = allowed_origins(params);

    return name == "localhost" || name == own || name == own + ".local" || is_address(name) ||
        std::any_of(hosts.begin(), hosts.end(), [&](const std::string & host) { return lower(host) == name; }) ||
        std::any_of(allowed.begin(), allowed.end(),
            [&](const std::string & other) { return other == "*" || name_of(authority_of(other)) == name; });
}

static bool is_loopback(const std::string & address) {
    return string_starts_with(address, "127.") || string_starts_with(address, "::ffff:127.") || address == "::1";
}

bool server_h2o_is_local(const common_params & params) {
    return std::all_of(params.hostnames.begin(), params.hostnames.end(), [](const std::string & host) {
        return host == "localhost" || is_loopback(host) || string_ends_with(host, ".sock");
    });
}

static bool refuse(httplib::Response & response, const std::string & message) {
    response.status = 403;
    response.set_content(safe_json_to_str({ { "error", format_error_response(message, ERROR_TYPE_PERMISSION) } }),
        "application/json; charset=utf-8");
    return false;
}

static std::string option_for(const std::string & origin) {
    return "`h2o-llama serve MODEL --cors-origins '" + origin.substr(0, 100) + "'`";
}

std::string server_h2o_allowed_headers(const common_params & params, const httplib::Request & request) {
    // "*" names none for a page that sends a key
    return params.cors_headers != "*" ? params.cors_headers : request.get_header_value("Access-Control-Request-Headers");
}

bool server_h2o_admits(const common_params & params, const httplib::Request & request, httplib::Response & response) {
    server_h2o_set_owner(server_h2o_key(params, request.headers));
    const auto host   = lower(request.get_header_value("Host"));
    const auto origin = lower(request.get_header_value("Origin"));

    // a Unix-domain socket has no address, and no browser reaches it
    if (!host.empty() && !request.local_addr.empty() && !is_allowed_host(params, name_of(host))) {
        return refuse(response, "this server has another name than " + host.substr(0, 100) +
            ": ask for localhost or its IP address, or start it with " + option_for("http://" + host));
    }
    if (origin.empty()) {
        return true;
    }
    // behind a proxy `Host` may be another one: then the browser says that the page is the server's
    if ((!host.empty() && authority_of(origin) == host) ||
        request.get_header_value("Sec-Fetch-Site") == "same-origin") {
        return true;
    }
    if (!is_allowed_origin(params, origin)) {
        return refuse(response, "pages of " + origin.substr(0, 100) +
            " may not use this server: to let them, start it with " + option_for(origin));
    }
    return true;
}

void server_h2o_set_origin(
        const common_params & params, const httplib::Request & request, httplib::Response & response) {
    const auto origin = request.get_header_value("Origin");
    if (!origin.empty() && is_allowed_origin(params, lower(origin))) {
        response.set_header("Access-Control-Allow-Origin", origin);
        response.set_header("Vary", "Origin");
    }
}
